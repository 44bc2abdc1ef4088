"""The report for an issue: what it says, and that no key gets into it."""

from __future__ import annotations

import json
from pathlib import Path

from localspec import __version__
from localspec.checks.bundle import bundle
from localspec.checks.finding import Finding

ENVIRONMENT = {
    "LOCALSPEC_API_KEY": "sk-very-secret",
    "OPENAI_API_KEY": 'sk-"other"-secret',
    "HF_TOKEN": "hf_secret_token",
    "GGML_CPU_TILED_MM": "0",
    "UNRELATED": "my diary",
}


def test_keys_are_left_out_wherever_they_stand() -> None:
    findings = [Finding("llama.cpp", 'an error that quotes sk-"other"-secret and sk-very-secret')]
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


def test_it_names_the_versions() -> None:
    found = json.loads(bundle([], {}, {}))["versions"]
    assert found["localspec"] == __version__
    assert {"numpy", "llama-cpp-python"} <= set(found)
