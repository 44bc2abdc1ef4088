"""Standard input: read where it is meant, never waited for without a word, and never other text than what was sent."""

from __future__ import annotations

import codecs
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.cli import streams
from tests.cli.conftest import Command

SHORT = ("--max-tokens", "4", "--seed", "7", "--drafter", "none")
PROMPT = "Repeat: Käse and a red lamp"
LEFT_ALONE = "localspec: standard input was left alone, as nothing came within 1 s. -f - waits for it.\n"
WAITING = "localspec: waiting for standard input.\n"


@pytest.fixture
def silent() -> Iterator[int]:
    """A pipe that sends nothing and stays open."""
    reading, writing = os.pipe()
    yield reading
    os.close(writing)
    os.close(reading)


def localspec(*words: str | bytes, stdin: int | None = None, sent: bytes | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command in a process of its own."""
    line = [sys.executable, "-m", "localspec", *words]
    done = subprocess.run(line, stdin=stdin, input=sent, capture_output=True, check=False, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_silent_pipe_is_left_alone_where_there_is_a_prompt(silent: int) -> None:
    code, out, err = localspec("run", "tiny", PROMPT, *SHORT, stdin=silent)
    assert (code, err) == (0, LEFT_ALONE)
    assert out == localspec("run", "tiny", PROMPT, *SHORT, stdin=subprocess.DEVNULL)[1]


def test_what_is_sent_at_once_is_read_to_its_end() -> None:
    shell = f"(echo one; sleep 1.5; echo two) | {sys.executable} -m localspec run tiny Repeat: --json {' '.join(SHORT)}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, check=False, timeout=120)
    assert done.stderr == b""
    whole = localspec("run", "tiny", "Repeat:\n\none\ntwo\n", "--json", *SHORT, stdin=subprocess.DEVNULL)[1]
    assert json.loads(done.stdout)["stats"]["prompt_tokens"] == json.loads(whole)["stats"]["prompt_tokens"]


@pytest.mark.parametrize("words", [(), ("-",), ("Repeat:", "-f", "-")])
def test_what_is_needed_is_waited_for_with_a_word(words: tuple[str, ...]) -> None:
    shell = f"sleep 2; echo red; exec {sys.executable} -c pass"
    with subprocess.Popen(["bash", "-c", shell], stdout=subprocess.PIPE) as late:
        assert late.stdout is not None
        code, out, err = localspec("run", *words, *SHORT, stdin=late.stdout.fileno())
    assert (code, err) == (0, WAITING)
    assert out.strip()


def test_batch_lines_are_waited_for_with_a_word() -> None:
    shell = """sleep 2; echo '{"prompt": "hi", "max_tokens": 2}'"""
    with subprocess.Popen(["bash", "-c", shell], stdout=subprocess.PIPE) as late:
        assert late.stdout is not None
        code, out, err = localspec("run", "--batch", "-", *SHORT, stdin=late.stdout.fileno())
    assert (code, err) == (0, WAITING + "1 answered, 0 failed.\n")
    assert json.loads(out)["id"] == 1


ODD = {
    "latin-1": PROMPT.encode("latin-1"),
    "UTF-16 without a mark": PROMPT.encode("utf-16-le"),
    "a program": b"\x7fELF\0\1",
}
MARKED = {
    "UTF-8": codecs.BOM_UTF8 + PROMPT.encode(),
    "UTF-16-LE": codecs.BOM_UTF16_LE + PROMPT.encode("utf-16-le"),
    "UTF-16-BE": codecs.BOM_UTF16_BE + PROMPT.encode("utf-16-be"),
}


@pytest.mark.parametrize("words", [("run",), ("run", "-f", "-"), ("run", "--batch", "-"), ("chat", "--plain")])
@pytest.mark.parametrize("name", ODD)
def test_what_is_no_text_is_refused(command: Command, words: tuple[str, ...], name: str) -> None:
    result = command(*words, *SHORT, stdin=ODD[name])
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("localspec: Cannot read standard input: it is not UTF-8 text")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("words", [("run",), ("chat", "--plain")])
@pytest.mark.parametrize("name", MARKED)
def test_a_byte_order_mark_is_believed_and_left_out(command: Command, words: tuple[str, ...], name: str) -> None:
    expected = command(*words, *SHORT, stdin=PROMPT)
    assert expected.code == 0
    assert command(*words, *SHORT, stdin=MARKED[name]) == expected


def test_lines_come_one_by_one(command: Command) -> None:
    one = command("chat", "--plain", *SHORT, stdin="Say: red\r\n/system Be brief.\r\nSay: blue")
    assert one.code == 0
    assert one == command("chat", "--plain", *SHORT, stdin="Say: red\n/system Be brief.\nSay: blue\n")


@pytest.mark.parametrize(
    "words", [("run", b"K\xe4se"), ("run", "hi", "--system", b"K\xe4se"), ("run", "hi", "--stop", b"\xe4")]
)
def test_words_that_are_no_text_are_refused(words: tuple[str | bytes, ...]) -> None:
    code, out, err = localspec(*words, *SHORT, stdin=subprocess.DEVNULL)
    assert (code, out) == (2, "")
    assert "is not UTF-8 text" in err
    assert len(err.splitlines()) == 1


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with open(tmp_path / "written", "wb") as file:
        code, _, err = localspec("run", *SHORT, stdin=file.fileno())
    assert (code, err) == (2, "localspec: Cannot read standard input: Bad file descriptor.\n")


def test_the_line_names_the_moment() -> None:
    assert f"{streams.MOMENT:g} s" in LEFT_ALONE
