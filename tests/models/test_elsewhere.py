"""Commands of other engines for the same target and drafter."""

from __future__ import annotations

import json
import shlex

import pytest

from localspec.cli.commands.show import ENGINES, NAMES, ServedModel, served_by
from localspec.errors import UsageError
from localspec.methods import FROM_FILES

HERE = ServedModel("big", "/models/big one.gguf", "", "maker/Big")
THERE = ServedModel("publisher/Head-GGUF", "", "publisher/Head-GGUF:Q8_0")


def test_the_engines_of_the_option_are_those_that_are_known() -> None:
    assert tuple(NAMES) == ENGINES
    assert all(set(names) <= set(FROM_FILES) | {"eagle"} for names in NAMES.values())


def test_llama_server_takes_files_here_and_repositories_there() -> None:
    words = shlex.split(served_by("llama-server", "dflash2", HERE, THERE)[0])
    assert words[:5] == ["llama-server", "-m", "/models/big one.gguf", "-hfd", "publisher/Head-GGUF:Q8_0"]
    assert words[5:] == ["--spec-type", "draft-dflash", "--spec-draft-n-max", "7"]
    assert "-md" not in shlex.split(served_by("llama-server", "mtp", HERE, None)[0])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("draft", {"method": "draft_model", "num_speculative_tokens": 3, "model": "DRAFT_CHECKPOINT"}),
        (
            "pard",
            {
                "method": "draft_model",
                "num_speculative_tokens": 7,
                "model": "DRAFT_CHECKPOINT",
                "parallel_drafting": True,
            },
        ),
    ],
)
def test_vllm_takes_one_json_object(method: str, settings: dict[str, object]) -> None:
    command, notes = served_by("vllm", method, HERE, THERE)
    *words, config = shlex.split(command)
    assert words == ["vllm", "serve", "maker/Big", "--speculative-config"]
    assert json.loads(config) == settings
    assert len(notes) == 1
    assert "publisher/Head-GGUF was made from in place of DRAFT_CHECKPOINT" in notes[0]


def test_sglang_counts_the_token_that_is_verified_beside_the_draft() -> None:
    words = shlex.split(served_by("sglang", "eagle3", HERE, THERE)[0])
    assert words[-6:] == [
        "--speculative-num-steps",
        "3",
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        "4",
    ]
    words = shlex.split(served_by("sglang", "dflash", HERE, THERE)[0])
    assert words[-2:] == ["--speculative-num-draft-tokens", "8"]
    assert "--speculative-num-steps" not in words


def test_tensorrt_llm_takes_a_file_of_settings() -> None:
    made, served = served_by("tensorrt-llm", "mtp", HERE, None)[0].split(" && ")
    _, settings, arrow, file = shlex.split(made)
    assert json.loads(settings) == {"speculative_config": {"decoding_type": "MTP", "max_draft_len": 3}}
    assert (arrow, shlex.split(served)) == (">", ["trtllm-serve", "maker/Big", "--extra_llm_api_options", file])


def test_what_an_engine_does_not_document_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sglang documents no drafting by dspark\. Its documentation has: draft, "):
        served_by("sglang", "dspark", HERE, THERE)
