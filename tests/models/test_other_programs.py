"""Models of other programs: folders as LM Studio, Ollama, llama.cpp, the hub and a browser leave them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from localspec.models.installed.installed import Kept, adopt, find_kept
from localspec.models.installed.store import Store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder in which nothing is yet."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME", "XDG_DOWNLOAD_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    return tmp_path


def put(source: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(source, path))


def names(found: list[Kept]) -> list[tuple[str, str]]:
    return [(one.program, one.name) for one in found]


def test_every_program_is_looked_at(home: Path, tiny_target: Path) -> None:
    put(tiny_target, home / ".lmstudio/models/someone/Tiny-GGUF/Tiny-Q8_0.gguf")
    put(tiny_target, home / ".cache/llama.cpp/someone_Tiny-GGUF_tiny.gguf")
    put(tiny_target, home / ".cache/huggingface/hub/models--someone--Tiny/snapshots/abc/tiny-hub.gguf")
    put(tiny_target, home / "Downloads/tiny-loaded.gguf")
    put(tiny_target, home / "Downloads/deeper/not-looked-at.gguf")
    put(tiny_target, home / ".ollama/models/blobs/sha256-12ab")
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/tiny/latest"
    manifest.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:12ab"},
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:34cd"},
    ]
    manifest.write_text(json.dumps({"layers": layers}))
    found = find_kept(Store())
    assert names(found) == [
        ("LM Studio", "Tiny-Q8_0"),
        ("Ollama", "tiny-latest"),
        ("the hub's cache", "tiny-hub"),
        ("llama.cpp's cache", "someone_Tiny-GGUF_tiny"),
        ("Downloads", "tiny-loaded"),
    ]
    assert {(one.bytes, one.quant, one.architecture) for one in found} == {
        (tiny_target.stat().st_size, "Q8_0", found[0].architecture)
    }
    assert not any(one.installed or one.is_head for one in found)


def test_an_ollama_model_can_be_taken_in_and_is_known_then(home: Path, tiny_target: Path) -> None:
    put(tiny_target, home / "blobs/sha256-12ab")
    manifest = home / "manifests/registry.ollama.ai/library/tiny/1b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:12ab"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_MODELS", str(home))
        (one,) = find_kept(Store())
        entry = adopt(one.path, Store(), name=one.name)
        assert (entry.name, entry.fault, entry.quant) == ("tiny-1b", "", "Q8_0")
        assert [one.installed for one in find_kept(Store())] == ["tiny-1b"]


@pytest.mark.parametrize(
    "manifest", ["", "{", "[]", '{"layers": 1}', '{"layers": [{"digest": 1, "mediaType": "x"}]}', '{"layers": [null]}']
)
def test_a_damaged_manifest_is_left_out(home: Path, manifest: str) -> None:
    file = home / ".ollama/models/manifests/registry.ollama.ai/library/tiny/latest"
    file.parent.mkdir(parents=True)
    file.write_text(manifest)
    assert find_kept(Store()) == []


def test_a_digest_cannot_lead_out_of_the_folder(home: Path, tiny_target: Path) -> None:
    put(tiny_target, home / ".ollama/models/secret.gguf")
    file = home / ".ollama/models/manifests/registry.ollama.ai/library/tiny/latest"
    file.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "../secret.gguf"}
    file.write_text(json.dumps({"layers": [layer]}))
    assert find_kept(Store()) == []


def test_a_file_in_two_places_is_one_model(home: Path, tiny_target: Path) -> None:
    file = put(tiny_target, home / ".lmstudio/models/tiny.gguf")
    (home / "Downloads").mkdir()
    (home / "Downloads/tiny-link.gguf").symlink_to(file)
    assert names(find_kept(Store())) == [("LM Studio", "tiny")]


def test_files_that_are_no_models_are_left_out(home: Path, tiny_target: Path) -> None:
    (home / "Downloads").mkdir()
    (home / "Downloads/cut.gguf").write_bytes(tiny_target.read_bytes()[:100])
    (home / "Downloads/text.gguf").write_text("no model")
    (home / "Downloads/gone.gguf").symlink_to(home / "nowhere")
    put(tiny_target, home / "Downloads/half-00002-of-00002.gguf")
    put(tiny_target, home / "Downloads/half-00001-of-00002.gguf")
    (home / "Downloads/half-00002-of-00002.gguf").unlink()
    assert find_kept(Store()) == []
