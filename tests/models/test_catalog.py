"""The catalogue: every mistake in the file is named, and names become files."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import ModelError, UsageError
from localspec.models.catalog import DEFAULT_PAIR, Catalog

MODELS = """
[[model]]
name = "big"
file = "big.gguf"
role = "target"

[[model]]
name = "small"
file = "small.gguf"
role = "draft"
sha256 = "00ff"
licence = "MIT"

[[pair]]
name = "both"
target = "big"
draft = "small"
why = "they fit"
"""


def load(folder: Path, text: str) -> Catalog:
    path = folder / "models.toml"
    path.write_text(text, encoding="utf-8")
    return Catalog.load(path)


def test_entries_by_name(tmp_path: Path) -> None:
    catalog = load(tmp_path, MODELS)
    assert list(catalog.models) == ["big", "small"]
    assert catalog.models["small"].sha256 == "00ff"
    assert not catalog.models["big"].bundled
    assert catalog.pairs["both"].why == "they fit"


def test_an_empty_catalogue_is_fine(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Catalog({}, {})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (MODELS + 'colour = "red"\n', "unknown key 'colour' in 'both'"),
        (MODELS.replace('file = "big.gguf"', 'path = "big.gguf"'), "unknown key 'path' in 'big'"),
        (MODELS.replace('role = "draft"\n', ""), "'small': .*'role'"),
        (MODELS.replace('name = "both"\n', ""), "'name'"),
        (MODELS.replace('draft = "small"', 'draft = "tiny"'), "pair 'both' names the model 'tiny'"),
        (MODELS.replace('target = "big"', 'target = "huge"'), "pair 'both' names the model 'huge'"),
        ('[[modell]]\nname = "x"\n', "unknown table 'modell'"),
        ('[model]\nname = "x"\n', "is not a list of tables"),
        ("model = [1]\n", "1 is not a table"),
        ("model = 5\n", "5 is not a list of tables"),
        (MODELS.replace('role = "target"', 'role = "target"\nbundled = "yes"'), "bundled is 'yes'; it must be a bool"),
        ('[[model]]\nname = 5\nfile = "x"\nrole = "target"\n', "name is 5; it must be a str"),
        ('[[model]]\nname = "x"\nfile = "x"\nrole = "robot"\n', "'x' has role 'robot'; it must be target or draft"),
        (MODELS + MODELS, "'big' is listed twice"),
        ("name = [\n", "Cannot read the catalogue"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        load(tmp_path, text)
    assert "models.toml" in str(caught.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read the catalogue"):
        Catalog.load(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="Cannot read the catalogue"):
        Catalog.load(tmp_path / "bytes.toml")


def test_names_become_files(tmp_path: Path) -> None:
    catalog = load(tmp_path, MODELS)
    big, small = catalog.models["big"].path, catalog.models["small"].path
    assert (big.name, small.name) == ("big.gguf", "small.gguf")
    assert catalog.resolve("both") == (big, small)
    assert catalog.resolve("big") == (big, None)


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    catalog = load(tmp_path, MODELS)
    assert catalog.resolve("/not/there/x.gguf") == (Path("/not/there/x.gguf"), None)
    other = tmp_path / "model.bin"
    other.touch()
    assert catalog.resolve(str(other)) == (other, None)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model or pair called 'bigg'") as caught:
        load(tmp_path, MODELS).resolve("bigg")
    assert "big, both, small" in caught.value.hint


def test_the_shipped_catalogue_has_the_bundled_pair() -> None:
    catalog = Catalog.load()
    assert DEFAULT_PAIR in catalog.pairs
    target, draft = catalog.resolve(None)
    assert draft is not None
    assert (target.name, draft.name) == ("tiny-target-q8_0.gguf", "tiny-draft-q8_0.gguf")
    for entry in catalog.models.values():
        assert not entry.bundled or entry.licence


def test_the_bundled_files_are_there(tiny_target: Path, tiny_draft: Path) -> None:
    assert Catalog.load().resolve(None) == (tiny_target, tiny_draft)
