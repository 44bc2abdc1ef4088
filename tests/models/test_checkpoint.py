"""What a folder or weights file is as a drafter: by its config.json, else by the names of its tensors."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ModelFileError
from localspec.models.facts.heads import checkpoint_kind, is_checkpoint, trained_for, weights_of

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


def test_odd_facts_say_nothing(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "head.safetensors", NAMES["medusa"])
    for odd in ("null", "[1]", "7"):
        (tmp_path / "config.json").write_text(f'{{"architectures": {odd}, "model_type": {odd}}}')
        assert trained_for(path) == ""
        assert checkpoint_kind(path).method == "medusa"


def test_what_trainers_leave_beside_weights_is_no_weights(tmp_path: Path) -> None:
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "head.bin"):
        (tmp_path / name).write_bytes(b"")
    assert weights_of(tmp_path) == [tmp_path / "head.bin"]
    weights = [pickled(tmp_path / f"pytorch_model-{part}.bin", NAMES["mlp"]) for part in (1, 2)]
    assert weights_of(tmp_path) == weights
    assert checkpoint_kind(tmp_path).method == "mlp"


def test_the_model_that_heads_lie_beside_is_not_counted(tmp_path: Path) -> None:
    for part in (1, 2):
        safetensors(tmp_path / f"model-0000{part}-of-00002.safetensors", NAMES["unknown"], target_sha256="cd")
    heads = pickled(tmp_path / "medusa_lm_head.pt", NAMES["medusa"])
    assert weights_of(tmp_path) == [heads]
    assert checkpoint_kind(tmp_path).method == "medusa"
    assert trained_for(tmp_path) == ""
    better = safetensors(tmp_path / "medusa_lm_head.safetensors", NAMES["medusa"], target_sha256="ab")
    assert weights_of(tmp_path) == [better]
    assert trained_for(tmp_path) == "ab"


def test_what_is_packed_wrong_is_said(tmp_path: Path) -> None:
    path = tmp_path / "head.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", pickle.dumps(NAMES["mlp"]))
    packed = path.read_bytes()
    start = 30 + len("data.pkl")
    for damaged in (packed[:start] + b"\xff" * 8 + packed[start + 8 :], packed.replace(b"\x14\0\0\0", b"\x14\0\1\0")):
        assert damaged != packed
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="cannot be read as a file of torch's"):
            checkpoint_kind(path)


def test_what_is_damaged_is_said(tmp_path: Path) -> None:
    def text(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    for path, words in (
        (tmp_path / "nowhere", "is missing, or holds no weights"),
        (text("short.safetensors", b"\x09\0\0\0\0\0\0\0{"), "is truncated, or no safetensors file"),
        (text("list.safetensors", b"\x02\0\0\0\0\0\0\0[]"), "is truncated, or no safetensors file"),
        (text("deep.safetensors", b"\xa0\x86\x01\0\0\0\0\0" + b"[" * 100_000), "is truncated, or no safetensors file"),
        (text("huge.safetensors", b"\xff" * 16), "is truncated, or no safetensors file"),
        (text("old.pt", b"\x80\x02}q\0."), "cannot be read as a file of torch's"),
    ):
        with pytest.raises(ModelFileError, match=words):
            checkpoint_kind(path)
    text("config.json", b"[]")
    with pytest.raises(ModelFileError, match="is no JSON object"):
        checkpoint_kind(tmp_path)
