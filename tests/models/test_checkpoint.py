"""What a folder or weights file is as a drafter: by its config.json, else by the names of its tensors."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ModelFileError
from localspec.models.checkpoint import checkpoint_kind, is_checkpoint, trained_for, weights_of

NAMES = {
    "medusa": ["0.0.linear.weight", "0.0.linear.bias", "0.1.weight"],
    "mlp": ["speculator.emb.0.weight", "speculator.proj.0.weight"],
    "eagle": ["embed_tokens.weight", "fc.weight", "layers.0.self_attn.q_proj.weight"],
    "eagle3": ["d2t", "fc.weight", "lm_head.weight", "midlayer.hidden_norm.weight"],
    "unknown": ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"],
}


def safetensors(path: Path, names: list[str], **facts: str) -> Path:
    told: dict[str, Any] = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names}
    text = json.dumps(told | {"__metadata__": facts}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def pickled(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(dict.fromkeys(names, 0)))
    return path


@pytest.mark.parametrize("method", NAMES)
def test_by_the_names_of_tensors(method: str, tmp_path: Path) -> None:
    for path in (
        safetensors(tmp_path / "head.safetensors", NAMES[method]),
        pickled(tmp_path / "pytorch_model.bin", NAMES[method]),
    ):
        assert is_checkpoint(path)
        found = checkpoint_kind(path)
        assert (found.method, found.drafts, found.is_head) == (method, method != "unknown", method != "unknown")


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"medusa_num_heads": 5, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}, "medusa"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"}, "mlp"),
        ({"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}, "eagle3"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "eagle"),
    ],
)
def test_by_the_config_beside_the_weights(config: dict[str, Any], method: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = safetensors(tmp_path / "model.safetensors", NAMES["eagle"])  # asked where the config does not say
    assert checkpoint_kind(tmp_path).method == checkpoint_kind(weights).method == method
    assert weights_of(tmp_path) == weights_of(weights) == [weights]


def test_for_which_target(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "head.safetensors", NAMES["medusa"], target_sha256="ab" * 32)
    assert trained_for(path) == "ab" * 32
    (tmp_path / "config.json").write_text('{"target_sha256": "cd"}')
    assert trained_for(path) == "cd"
    assert trained_for(pickled(tmp_path / "other.pt", NAMES["medusa"])) == "cd"


def test_what_is_damaged_is_said(tmp_path: Path) -> None:
    def text(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    for path, words in (
        (tmp_path / "nowhere", "is missing, or holds no weights"),
        (text("short.safetensors", b"\x09\0\0\0\0\0\0\0{"), "cannot be read"),
        (text("list.safetensors", b"\x02\0\0\0\0\0\0\0[]"), "is no safetensors file"),
        (text("huge.safetensors", b"\xff" * 16), "is no safetensors file"),
        (text("old.pt", b"\x80\x02}q\0."), "cannot be read as a file of torch's"),
    ):
        with pytest.raises(ModelFileError, match=words):
            checkpoint_kind(path)
    text("config.json", b"[]")
    with pytest.raises(ModelFileError, match="is no JSON object"):
        checkpoint_kind(tmp_path)
