"""Drafts for a target: by its name in the catalogue, as another quantisation of a listed model, by its tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.gguf import Tensor, read_header
from localspec.models.hub.names import base_name
from localspec.models.hub.pull import family_of, neighbours, parameters_of, suggest
from localspec.models.installed.catalog import Catalog
from tests.hub import published
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors, write


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "qwen3-8b"),
        ("qwen3-8b", "qwen3-8b"),
        ("Qwen/Qwen3-8B-GGUF", "qwen3-8b"),
        ("Qwen/Qwen3-8B-GGUF:Q5_K_M", "qwen3-8b"),
        ("folder/Qwen3-8B.IQ4_XS.gguf", "qwen3-8b"),
        ("smollm2-1.7b-instruct-q4_k_m.gguf", "smollm2-1.7b-instruct"),
        ("", ""),
    ],
)
def test_base_names(name: str, base: str) -> None:
    assert base_name(name) == base


def test_another_quantisation_gets_the_same_draft() -> None:
    (found,) = suggest(None, {"Qwen3-8B-Q6_K.gguf"}, Catalog.load(), {})
    assert found.draft == "qwen3-0.6b-q8_0"
    assert found.command == (
        "localspec pull qwen3-0.6b-q8_0 --role draft && localspec run --target TARGET --draft qwen3-0.6b-q8_0"
    )
    (found,) = suggest(None, {"bartowski/Llama-3.3-70B-Instruct-GGUF:Q5_K_M"}, Catalog.load(), {})
    assert found.draft == "llama-3.2-1b-q4_k_m"


def test_other_models_get_nothing_by_name() -> None:
    for name in ("Phi-4-mini-Q4_K_M.gguf", "", ".gguf", "qwen3-8"):
        assert suggest(None, {name}, Catalog.load(), {}) == []


@pytest.mark.parametrize(
    ("name", "family", "parameters"),
    [
        ("Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf", "qwen2.5-coder-instruct", 1.5e9),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-instruct", 5e8),
        ("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", "qwen2.5-coder", 7e9),
        ("Qwen2.5 Coder 1.5B Instruct GGUF", "qwen2.5-coder-instruct", 1.5e9),
        ("Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf", "qwen3-coder-instruct", 3e10),
        ("mixtral-8x7b-v0.1", "mixtral-v0.1", 5.6e10),
        ("SmolLM2-135M-Instruct-Q4_1.gguf", "smollm2-instruct", 1.35e8),
        ("phi-4-mini", "", 0.0),
        ("7B", "", 7e9),
        ("", "", 0.0),
    ],
)
def test_families(name: str, family: str, parameters: float) -> None:
    assert (family_of(name), parameters_of(name)) == (family, parameters)


def test_a_model_that_is_not_listed_gets_what_drafts_for_its_family(tmp_path: Path) -> None:
    (found,) = suggest(None, {"Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf"}, Catalog.load(), {})
    assert (found.draft, found.method, found.installed) == ("qwen2.5-coder-0.5b-instruct-q8_0", "draft", False)
    assert "qwen2.5-coder-instruct" in found.why
    assert found.command.startswith("localspec pull qwen2.5-coder-0.5b-instruct-q8_0 --role draft && ")
    (found,) = suggest(None, {"Llama-3.2-3B-Instruct-Q4_K_M.gguf"}, Catalog.load(), {})
    assert found.draft == "llama-3.2-1b-q4_k_m"
    smaller = suggest(None, {"Qwen3-4B-Q6_K_L.gguf"}, Catalog.load(), {})
    assert [one.draft for one in smaller] == ["qwen3-0.6b-q8_0", "qwen3-1.7b-q8_0"]
    assert suggest(None, {"Qwen3-0.6B-Q4_K_M.gguf"}, Catalog.load(), {}) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"general.name": "Qwen2.5 Coder 3B Instruct"},
        {"general.basename": "Qwen2.5-Coder", "general.size_label": "3B", "general.finetune": "Instruct-GGUF"},
        {"general.name": "My Tune", "general.base_model.0.name": "Qwen2.5 Coder 3B Instruct"},
        {"general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen2.5-Coder-3B-Instruct"},
    ],
)
def test_the_header_tells_the_family_where_the_file_name_does_not(tmp_path: Path, facts: dict[str, str]) -> None:
    target = read_header(write(tmp_path / "model.gguf", gguf_bytes({**TINY_METADATA, **facts})))
    large = replace(target, tensors=(Tensor("x", (3_000_000_000,), "F16", 0, 6_000_000_000),))
    (found,) = suggest(large, {"model.gguf"}, Catalog.load(), {})
    assert found.draft == "qwen2.5-coder-0.5b-instruct-q8_0"
    assert suggest(target, {"model.gguf"}, Catalog.load(), {}) == [], "it is smaller than its draft"


def test_the_tokenizer_decides_about_one_of_the_family_that_is_here(tmp_path: Path) -> None:
    name = {"general.name": "Qwen2.5 Coder 3B Instruct"}
    layers = [(text.replace("blk.0", f"blk.{i}"), size) for i in range(1, 6) for text, size in tiny_tensors()[2:]]
    tensors = [*tiny_tensors(), *layers]
    target = read_header(
        write(tmp_path / "m.gguf", gguf_bytes({**TINY_METADATA, **name, "llama.block_count": 6}, tensors))
    )
    here = "qwen2.5-coder-0.5b-instruct-q8_0"
    other = write(tmp_path / "other.gguf", gguf_bytes({**TINY_METADATA, "tokenizer.ggml.eos_token_id": 5}))
    assert suggest(target, {"m.gguf"}, Catalog.load(), {here: other}) == []
    fitting = write(tmp_path / "fitting.gguf", gguf_bytes())
    (found,) = suggest(target, {"m.gguf"}, Catalog.load(), {here: fitting})
    assert (found.draft, found.installed) == (here, True)


def test_an_installed_draft_comes_first_and_is_used_as_it_is(tmp_path: Path) -> None:
    draft = write(tmp_path / "draft.gguf", gguf_bytes())
    (found,) = suggest(None, {"qwen3-8b-q4_k_m"}, Catalog.load(), {"qwen3-0.6b-q8_0": draft})
    assert (found.installed, found.bytes) == (True, draft.stat().st_size)
    assert found.command == "localspec run --target qwen3-8b"
    kinds = [(one.installed, one.method) for one in suggest(None, {"qwen3.6-27b-q4_k_m"}, Catalog.load(), {})]
    assert kinds == [(False, "eagle3")]


def test_by_tokenizer_only_smaller_models_that_fit(tmp_path: Path) -> None:
    layers = [(name.replace("blk.0", f"blk.{i}"), size) for i in range(1, 6) for name, size in tiny_tensors()[2:]]
    big = write(
        tmp_path / "big.gguf", gguf_bytes({**TINY_METADATA, "llama.block_count": 6}, [*tiny_tensors(), *layers])
    )
    small = write(tmp_path / "small.gguf", gguf_bytes())
    write(tmp_path / "eos.gguf", gguf_bytes({**TINY_METADATA, "tokenizer.ggml.eos_token_id": 5}))
    write(tmp_path / "broken.gguf", gguf_bytes()[:900])
    (tmp_path / "folder.gguf").mkdir()
    near = neighbours(big)
    assert [path.name for path in near.values()] == ["broken.gguf", "eos.gguf", "small.gguf"]
    (found,) = suggest(read_header(big), {"big.gguf"}, Catalog.load(), near)
    assert found.draft == str(small)
    assert suggest(read_header(small), {"small.gguf"}, Catalog.load(), {"big": big, "small": small}) == []
    assert neighbours(Path("/no/such/folder/x.gguf")) == {}


def test_what_is_inside_or_beside_comes_first(tmp_path: Path) -> None:
    """The same rule as for `pull`: the header decides, the folder above counts where the name says what a file is."""
    folder = tmp_path / "Q8_0"
    folder.mkdir()
    target = write(folder / "model.gguf", published.model())
    files = {
        "Q8_0/small.gguf": published.model(layers=1),
        "Q8_0/eagle3-model.gguf": published.eagle3(),
        "Q8_0/mtp-other.gguf": published.mtp(layers=7),
        "Q8_0/mtp-model-assistant.gguf": published.assistant(),
        "model-mtp.gguf": published.mtp(),
        "unnamed.gguf": published.mtp(),
    }
    for name, data in files.items():
        write(tmp_path / name, data)
    found = suggest(read_header(target), {"model.gguf"}, Catalog({}, {}), neighbours(target))
    assert [(Path(one.draft).name, one.method) for one in found] == [
        ("model-mtp.gguf", "mtp"),
        ("eagle3-model.gguf", "eagle3"),
        ("small.gguf", "draft"),
    ]
    assert neighbours(target, [tmp_path / name for name in files]) == {}
    own = write(tmp_path / "own.gguf", published.model(nextn=2))
    (first, *_) = suggest(read_header(own), {"own.gguf"}, Catalog({}, {}), {}, "own")
    assert (first.draft, first.method, first.command) == (str(own), "mtp", "localspec run --target own")
    assert first.why.startswith("2 layer(s)")
    forgetful = write(tmp_path / "jamba.gguf", published.model(architecture="jamba", own__ssm__state_size=16))
    assert suggest(read_header(forgetful), {"jamba.gguf"}, Catalog({}, {}), neighbours(forgetful)) == []
