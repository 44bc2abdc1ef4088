"""The report for an issue: what it says, and that no key gets into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec import __version__
from localspec.checks.doctor import Remark, bundle, write_bundle

ENVIRONMENT = {
    "LOCALSPEC_API_KEY": "sk-very-secret",
    "OPENAI_API_KEY": 'sk-"other"-secret',
    "HF_TOKEN": "hf_secret_token",
    "GGML_CPU_TILED_MM": "0",
    "UNRELATED": "my diary",
}


def test_keys_are_left_out_wherever_they_stand() -> None:
    findings = [Remark("llama.cpp", 'an error that quotes sk-"other"-secret and sk-very-secret')]
    text = bundle(findings, {"target": Path.home() / "models/a.gguf"}, ENVIRONMENT)
    for value in ("secret", "diary", str(Path.home())):
        assert value not in text
    found = json.loads(text)
    assert found["environment"] == {
        "GGML_CPU_TILED_MM": "0",
        "HF_TOKEN": "(left out)",
        "LOCALSPEC_API_KEY": "(left out)",
    }
    assert found["settings"] == {"target": "~/models/a.gguf"}
    assert found["findings"][0]["value"] == "an error that quotes (left out) and (left out)"


def test_a_variable_that_models_toml_names_holds_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_WORK", "sesame")
    entry = '[[endpoint]]\nname = "work"\nendpoint = "http://10.0.0.7:8000"\nkey_env = "LOCALSPEC_WORK"\n'
    (tmp_path / "models.toml").write_text(entry, encoding="utf-8")
    write_bundle(tmp_path / "report.json", [Remark("log", "it quotes sesame")], {})
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    assert "sesame" not in text
    assert json.loads(text)["environment"]["LOCALSPEC_WORK"] == "(left out)"


def test_it_names_the_versions() -> None:
    found = json.loads(bundle([], {}, {}))["versions"]
    assert found["localspec"] == __version__
    assert {"numpy", "llama-cpp-python"} <= set(found)
