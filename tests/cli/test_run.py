"""`localspec run`: what comes out, where it goes, and what it says to bad input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec.cli.output import stream_answer
from localspec.engine.interfaces import Request
from localspec.engine.slot import Event
from localspec.runtime.generation import Generation
from tests.cli.conftest import Command

PROMPT = "Repeat this text exactly: seven green boats and a red lamp"
SHORT = ("--max-tokens", "24", "--seed", "7")


def test_answer_is_the_only_thing_on_standard_output(command: Command) -> None:
    result = command("run", PROMPT, *SHORT)
    assert result.code == 0
    assert result.err == ""
    assert result.out.endswith("\n")
    assert result.out.strip()
    assert "\x1b" not in result.out


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_no_drafter_changes_the_answer(command: Command, temperature: str) -> None:
    answers = {
        drafter: command(
            "run", PROMPT, *SHORT, "--temperature", temperature, "--drafter", drafter, "--exact", "strict"
        ).out
        for drafter in ("none", "lookup", "draft", "auto")
    }
    assert len(set(answers.values())) == 1, answers


def test_standard_input_file_and_argument_give_the_same_prompt(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, encoding="utf-8")
    expected = command("run", PROMPT, *SHORT).out
    assert command("run", *SHORT, stdin=PROMPT).out == expected
    first, rest = PROMPT.split(": ", 1)
    both = command("run", first + ":", *SHORT, "--json", stdin=rest)
    assert (
        json.loads(both.out)["stats"]["prompt_tokens"]
        == json.loads(command("run", f"{first}:\n\n{rest}", *SHORT, "--json").out)["stats"]["prompt_tokens"]
    )
    assert command("run", "-f", str(file), *SHORT).out == expected
    assert command("run", "-", *SHORT, stdin=PROMPT).out == expected


def test_json_holds_text_tokens_seed_and_stats(command: Command) -> None:
    result = command("run", PROMPT, *SHORT, "--json", "--log-probs", "2")
    answer = json.loads(result.out)
    assert answer["seed"] == 7
    assert answer["finish_reason"] in ("stop", "length")
    assert len(answer["log_probs"]) == len(answer["tokens"]) == answer["stats"]["generated_tokens"]
    assert all(found["log_prob"] <= 0 and len(found["top"]) == 2 for found in answer["log_probs"])
    assert isinstance(answer["stats"]["exact"], bool)
    assert re.search(r", (wide kernels|repacked weights|plain weights)$", answer["configuration"])


def test_stats_go_to_standard_error(command: Command) -> None:
    result = command("run", PROMPT, *SHORT, "--stats")
    assert "tokens/s" in result.err
    assert "seed 7" in result.err
    assert re.search(r"exact: (yes|no) \(.*(wide kernels|repacked weights|plain weights)\)", result.err)
    result = command(
        "run", PROMPT, *SHORT, "--stats", "--no-wide", "--exact", "off"
    )  # nothing is to be examined for it
    assert re.search(r"exact: (yes|no) \(.*(repacked|plain) weights\)", result.err)
    assert "tokens/s" not in result.out


def test_an_answer_without_drafts_says_plain(command: Command) -> None:
    result = command("run", PROMPT, *SHORT, "--stats", "--drafter", "none")
    assert "plain decoding: nothing was drafted" in result.err
    assert "x plain" not in result.err


def test_stop_string_ends_the_answer_and_is_left_out(command: Command) -> None:
    plain = command("run", PROMPT, *SHORT, "--temperature", "0").out
    stop = plain.split()[2]
    cut = command("run", PROMPT, *SHORT, "--temperature", "0", "--stop", stop).out
    assert cut.rstrip("\n") == plain[: plain.index(stop)]


def test_system_message_reaches_the_model(command: Command) -> None:
    with_system = json.loads(command("run", PROMPT, *SHORT, "--json", "--system", "Be brief.").out)
    without = json.loads(command("run", PROMPT, *SHORT, "--json").out)
    assert with_system["stats"]["prompt_tokens"] > without["stats"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "no prompt"),
        (("hi", "--temperature", "-1"), 2, "--temperature is -1"),
        (("hi", "--temperature", "nan"), 2, "temperature is nan"),
        (("hi", "--top-p", "2"), 2, "--top-p is 2; it must be a number between 0 and 1."),
        (("hi", "--top-k", "-4"), 2, "--top-k is -4"),
        (("hi", "--max-tokens", "0"), 2, "--max-tokens is 0"),
        (("hi", "--seed", "-1"), 2, "seed is -1"),
        (("hi", "--drafter", "magic"), 2, "'magic'"),
        (
            ("hi", "--max-draft-tokens", "1000"),
            2,
            "--max-draft-tokens is 1000; it must be a whole number between 0 and 64.",
        ),
        (("hi", "--min-ngram", "9"), 2, "min_ngram is 9"),
        (("hi", "--logit-bias", "x"), 2, "--logit-bias is 'x'"),
        (("hi", "--log-probs", "3"), 2, "--log-probs needs --json"),
        (("hi", "--target", "nosuch"), 3, "'nosuch'"),
        (("hi", "--target", "nosuch.gguf"), 3, "nosuch.gguf"),
        (("-f", "nosuch.txt"), 2, "nosuch.txt"),
        (("hi", "--threads", "0"), 2, "threads is 0"),
        (("hi", "--context", "4"), 2, "context is 4"),
        (("hi", "--target", "tiny-target", "--drafter", "draft"), 2, "needs a draft model"),
        (("hi", "--speculative-config", "{"), 2, "not JSON"),
        (("hi", "--speculative-config", '{"modell": "x"}'), 2, "'modell'"),
        (("hi", "--speculative-config", '{"num_speculative_tokens": "3"}'), 2, "num_speculative_tokens"),
        (("hi", "--speculative-config", '{"method": "eagle9"}'), 2, "eagle9"),
        (("word " * 5000,), 4, "the context holds"),
        (("hi", "--device", "CUDA99"), 2, "CUDA99"),
        (("hi", "--slots", "2"), 2, "--slots needs --batch"),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(
    command: Command, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = command("run", *arguments)
    assert result.code == code, result.err
    assert words in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert "Traceback" not in result.err


def test_vllm_keys_mean_the_same(command: Command) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}'
    by_json = json.loads(command("run", PROMPT, *SHORT, "--json", "--speculative-config", config).out)
    by_options = command(
        "run", PROMPT, *SHORT, "--json", "--drafter", "lookup", "--max-draft-tokens", "3", "--max-ngram", "4"
    )
    assert by_json["tokens"] == json.loads(by_options.out)["tokens"]
    assert by_json["stats"]["drafted_by_drafter"].keys() <= {"lookup"}
    assert by_json["stats"]["drafted"] == json.loads(by_options.out)["stats"]["drafted"]


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_other_rules_run_and_are_never_called_exact(command: Command, rule: str) -> None:
    answer = json.loads(command("run", PROMPT, *SHORT, "--json", "--verify-rule", rule, "--drafter", "draft").out)
    assert answer["tokens"]
    assert answer["stats"]["exact"] is False
    plain = json.loads(command("run", PROMPT, *SHORT, "--json", "--verify-rule", rule, "--drafter", "none").out)
    assert plain["stats"]["exact"] is False


def test_a_prompt_of_special_tokens_is_answered(command: Command) -> None:
    result = command("run", "<|bos|><|user|><|end|><|assistant|><think><|mask|>", "--raw", *SHORT, "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert answer["tokens"]
    assert answer["stats"]["prompt_tokens"] <= 7  # each is one token, not its letters


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom localspec.cli import main\n"
        "try: main(['run', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'llama_cpp', 'jinja2', 'rich', 'platformdirs'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    shell = f"{sys.executable} -m localspec run '{PROMPT}' --max-tokens 30 | head -c 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.stderr == ""


class Said(Generation):
    """An answer that is there, in pieces."""

    def __iter__(self) -> Iterator[Event]:
        for text in (
            "<|channel|>analysis<|message|>Hm",
            ".<|end|><|start|>assist",
            "ant<|channel|>final<|message|>Yes",
        ):
            yield Event(0, text, (), (), (), None, self.stats)


@pytest.mark.parametrize("channels", [False, True])
def test_headers_are_written_as_the_marks_of_other_models(capsys: pytest.CaptureFixture[str], channels: bool) -> None:
    said, parts = Said(Request(np.array([1], dtype=np.int32))), list[str]()
    stream_answer(said, parts, channels)
    whole = "".join(event.text for event in said)
    assert capsys.readouterr().out == ("<think>\nHm.\n</think>\n\nYes\n" if channels else f"{whole}\n")
    assert "".join(parts) == whole, "the conversation goes on with what the model said"
