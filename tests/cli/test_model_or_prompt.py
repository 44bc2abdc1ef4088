"""What a word of `run` is, the model or the prompt, and what opens the chat in place of an answer."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec.cli.shared import names_model
from tests.cli.conftest import Command

SHORT = ("--max-tokens", "12", "--temperature", "0", "--seed", "1", "--drafter", "none")
PROMPT = "Say: red house"


@pytest.fixture(scope="module")
def link(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled target, under a name that no list has and that does not end in .gguf."""
    path = tmp_path_factory.mktemp("models") / "sha256-0123"
    path.symlink_to(tiny_target)
    return path


def test_a_file_or_name_is_the_model_of_piped_text(command: Command, tiny_target: Path, link: Path) -> None:
    expected = command("run", "--target", "tiny-target", PROMPT, *SHORT)
    assert (expected.code, expected.err) == (0, "")
    for model in (str(tiny_target), str(link), "tiny-target"):
        assert command("run", model, *SHORT, stdin=PROMPT) == expected, model
        assert command("run", *SHORT, model, PROMPT) == expected, model
    missing = command("run", "nosuch.gguf", *SHORT, stdin=PROMPT)
    assert (missing.code, missing.out) == (3, "")
    assert "nosuch.gguf does not exist" in missing.err


def test_a_model_and_a_prompt_need_no_command(command: Command, tiny_target: Path) -> None:
    expected = command("run", "tiny-target", PROMPT, *SHORT)
    assert expected.code == 0
    for words in (
        ("tiny-target", PROMPT, *SHORT),
        (str(tiny_target), *SHORT, PROMPT),
        (*SHORT, "tiny-target", PROMPT),
        ("tiny-target", *SHORT, "--", PROMPT),
    ):
        assert command(*words) == expected, words
    told = command("tiny-target", "--raw", "--json", PROMPT, *SHORT)
    assert told.out.startswith('{"text"')


def test_a_command_is_the_command_even_where_a_model_is_called_so(command: Command, tiny_target: Path) -> None:
    added = command("import", str(tiny_target), "--name", "ps", "--link")
    assert added.code == 0, added.err
    try:
        assert isinstance(json.loads(command("ps", "--json").out), list)
        assert command("run", "ps", PROMPT, *SHORT) == command("run", "tiny-target", PROMPT, *SHORT)
    finally:
        command("rm", "ps")


def test_a_prompt_that_is_the_name_of_a_model_is_said(command: Command) -> None:
    for words in (("tiny-target", "tiny"), ("--target", "tiny-target", "tiny")):
        result = command("run", *words, *SHORT)
        assert result.code == 0
        assert result.err == "localspec: 'tiny', the name of a model, is the prompt.\n"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("tiny", True),
        ("nosuch.gguf", True),
        ("What is in a.gguf", False),
        ("Hello", False),
        ("and/or?", False),
        ("a" * 5000, False),
        ("a\0b", False),
        (os.curdir, False),
        (__file__, False),
    ],
)
def test_what_names_a_model(word: str, expected: bool) -> None:
    assert names_model(word) is expected


def at_terminal(words: Sequence[str], typed: bytes) -> tuple[int, str]:
    """Exit code and screen of a command in a real terminal that knows lines alone."""
    ours, theirs = pty.openpty()
    os.write(ours, typed)
    started = subprocess.Popen(
        [sys.executable, "-m", "localspec", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    return started.wait(), seen.decode()


@pytest.mark.parametrize("words", [("run", "{file}"), ("run", "tiny-target"), ("run", "--target", "tiny-target")])
def test_a_model_without_a_prompt_is_the_chat_in_a_terminal(words: Sequence[str], tiny_target: Path) -> None:
    line = [word.format(file=tiny_target) for word in words]
    code, seen = at_terminal([*line, *SHORT], b"/help\n/exit\n")
    assert code == 0, seen
    assert "/again" in seen


def test_what_the_chat_cannot_do_needs_a_prompt_in_a_terminal() -> None:
    code, seen = at_terminal(["run", "tiny-target", "--json"], b"")
    assert (code, "There is no prompt." in seen) == (2, True)
