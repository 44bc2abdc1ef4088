"""Text as files and pipes bring it: decoded where it says how, else refused."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from localspec.chat.text_file import check_text, decoded, read_text
from localspec.errors import UsageError

TEXT = "Käse, 4 €, 😀\nzwei"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
        codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
        codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
    ],
)
def test_a_text_that_says_how_it_is_written_is_that_text(data: bytes, tmp_path: Path) -> None:
    assert decoded(data, "it") == TEXT
    (tmp_path / "it.txt").write_bytes(data)
    assert read_text(tmp_path / "it.txt") == TEXT


@pytest.mark.parametrize(
    "data",
    [
        "Käse".encode("latin-1"),
        TEXT.encode("utf-16-le"),
        "plain".encode("utf-16-be"),
        codecs.BOM_UTF16_LE + b"odd",
        b"\x7fELF\x00\x01",
        b"ab\0c",
    ],
)
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^Cannot read it: it is not UTF-8 text.*iconv"):
        decoded(data, "it")


def test_a_word_of_the_command_line_that_is_no_text_is_refused() -> None:
    check_text(TEXT, "The prompt")
    with pytest.raises(UsageError, match="The prompt is not UTF-8 text"):
        check_text(b"K\xe4se".decode("utf-8", "surrogateescape"), "The prompt")
