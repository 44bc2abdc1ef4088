"""Exports: what is written can be taken in again, and HTML is inert."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Attachment
from localspec.chat.export import call_line
from localspec.chat.plain_text import plain_text
from localspec.chat.turn import CANCELLED
from localspec.engine.slot import PassRecord
from localspec.errors import UsageError
from tests.chat.conftest import made, say

anything = st.text(max_size=30)
plain = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**53), 2**53) | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=4,
)


def fill(archive: Archive, data: st.DataObject) -> None:
    """Some chats with everything a chat can have."""
    for _ in range(data.draw(st.integers(1, 2))):
        chat = archive.new_chat(
            title=data.draw(anything),
            system=data.draw(anything),
            model=data.draw(anything),
            params=data.draw(st.dictionaries(anything, plain, max_size=2)),
        )
        ids: list[int] = []
        for _ in range(data.draw(st.integers(1, 6))):
            parent = data.draw(st.sampled_from([None, *ids]))
            files = [Attachment(data.draw(anything), data.draw(anything))] if data.draw(st.booleans()) else []
            if parent is None or data.draw(st.booleans()):
                ids.append(archive.append_user(chat.id, data.draw(anything), attachments=files, parent=parent).id)
            else:
                seed = data.draw(st.none() | st.integers(0, 2**64 - 1))
                writer = archive.begin_answer(parent, model="m", seed=seed, piece=lambda token: bytes([token % 256]))
                record = PassRecord("draft", (3, 4), (-1, 0), (0,), 9, 3, 0.25)
                writer.extend(data.draw(anything), reasoning=data.draw(anything), record=record)
                for turn in range(data.draw(st.integers(0, 2))):
                    writer.add_call(made(data.draw(anything), data.draw(anything), turn))
                state = data.draw(st.sampled_from(["done", "stopped", "error"]))
                ids.append(writer.finish(state, stats={"passes": 1}, note=data.draw(anything)).id)
        archive.choose(data.draw(st.sampled_from(ids)))
        archive.update_chat(chat.id, pinned=data.draw(st.booleans()))
        archive.set_tags(chat.id, data.draw(st.lists(anything, max_size=2)))
        archive.update_chat(chat.id, unsent=data.draw(anything))
        archive.update_chat(
            chat.id, window_first=data.draw(st.none() | st.sampled_from(ids)), window_summary=data.draw(anything)
        )


@given(st.data())
@settings(max_examples=40)
def test_an_export_taken_in_again_gives_the_same_export(tmp_path_factory: Any, data: st.DataObject) -> None:
    file = tmp_path_factory.mktemp("export") / "chats.json"
    with Archive(None) as archive, Archive(None) as other:
        fill(archive, data)
        whole = archive.export(None, "json")
        file.write_text(whole, encoding="utf-8")
        report = other.import_file(file)
        assert report.chats == len(archive.chats())
        assert other.export(None, "json") == whole
        assert [[m.calls for m in other.path(chat.id)] for chat in other.chats()] == [
            [m.calls for m in archive.path(chat.id)] for chat in archive.chats()
        ]
        assert [[m.content for m in other.path(chat.id)] for chat in other.chats()] == [
            [m.content for m in archive.path(chat.id)] for chat in archive.chats()
        ]
        again = other.import_file(file)
        assert (again.chats, again.messages, again.skipped) == (0, 0, report.chats)
        assert other.export(None, "json") == whole


def test_a_grown_chat_brings_only_what_is_new(archive: Archive, tmp_path: Path) -> None:
    chat = archive.new_chat()
    say(archive, chat.id, "one", "1")
    file = tmp_path / "x.json"
    file.write_text(archive.export([chat.id], "json"), encoding="utf-8")
    with Archive(None) as other:
        other.import_file(file)
        say(archive, chat.id, "two", "2")
        file.write_text(archive.export([chat.id], "json"), encoding="utf-8")
        report = other.import_file(file)
        assert (report.chats, report.messages) == (0, 2)
        assert report.sentence() == "0 chats and 2 messages imported."
        assert [m.content for m in other.path(other.chats()[0].id)] == ["one", "1", "two", "2"]
        other.delete_chat(other.chats()[0].id)
        assert other.import_file(file).chats == 1


def test_origin_data_travels(archive: Archive, tmp_path: Path) -> None:
    chat = archive.new_chat()
    writer = archive.begin_answer(archive.append_user(chat.id, "x").id, piece=lambda token: b"ab")
    record = PassRecord("lookup", (1, 2), (-1, -1), (1,), 3, 3, 0.5)
    writer.extend("abab", record=record)
    writer.finish()
    (tmp_path / "x.json").write_text(archive.export(None, "json"), encoding="utf-8")
    with Archive(None) as other:
        other.import_file(tmp_path / "x.json")
        replay = other.replay(other.path(other.chats()[0].id)[1].id)
    assert replay.passes == [record]
    assert replay.pieces == {1: b"ab", 2: b"ab", 3: b"ab"}


HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\n\n![t](http://tracker.example/p.png) "
    "[x](javascript:alert(1)) [y](data:text/html,z) <svg/onload=1>\n\n```html\n</pre><script>1</script>\n```\x1b[2J"
    '"><iframe src=//evil>'
)


class Tags(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


@pytest.mark.parametrize("place", ["title", "system", "user", "answer", "file", "note", "tool", "given", "result"])
def test_html_runs_and_loads_nothing(archive: Archive, place: str) -> None:
    text = {place: HOSTILE}.get
    chat = archive.new_chat(title=text("title", "t"), system=text("system", "s"))
    files = [Attachment(text("file", "n"), text("file", "c"))]
    question = archive.append_user(chat.id, text("user", "u"), attachments=files)
    writer = archive.begin_answer(question.id, model=text("note", "m"))
    writer.extend(text("answer", "| a |\n|---|\n| **b** |"), reasoning=text("answer", "r"))
    writer.add_call(made(text("tool", "t"), text("result", "r"), arguments=text("given", "{}")))
    writer.finish("error", note=text("note", "n"))
    page = archive.export([chat.id], "html")
    found = Tags()
    found.feed(page)
    assert not found.tags & {"script", "img", "svg", "iframe", "link", "object", "base", "form"}
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "src"]
    targets = [value or "" for name, value in found.attributes if name == "href"]
    assert all(target.startswith(("http://", "https://", "#")) for target in targets)
    assert "\x1b" not in page


def test_html_renders_markdown_and_markdown_tells_who_speaks(archive: Archive) -> None:
    chat = archive.new_chat(title="Tables", system="Be brief.\nVery.")
    answer = say(archive, chat.id, "make *one*", "| a |\n|---|\n| **b** |")
    archive.begin_answer(answer.parent_id or 0).finish("stopped", note="Esc")
    archive.sibling(answer.id, 0)
    page = archive.export([chat.id], "html")
    assert "<td><strong>b</strong></td>" in page
    assert "make *one*" in page
    text = archive.export([chat.id], "markdown")
    assert text.startswith("# Tables\n\n**System prompt**\n\n> Be brief.\n> Very.\n\n## You, ")
    assert "*stopped: Esc*" not in text  # another branch
    archive.sibling(answer.id, 1)
    assert "*stopped: Esc*" in archive.export([chat.id], "markdown")
    assert len(json.loads(archive.export(None, "json"))["chats"][0]["messages"]) == 3


def test_an_unknown_format_or_chat(archive: Archive) -> None:
    with pytest.raises(UsageError, match="markdown, json, html"):
        archive.export(None, "pdf")
    with pytest.raises(UsageError, match="no chat 7"):
        archive.export([7], "json")
    assert archive.export(None, "html").startswith("<!doctype html>")


def test_calls_stand_folded_in_their_place(archive: Archive) -> None:
    writer = archive.begin_answer(archive.append_user(archive.new_chat().id, "When?").id)
    writer.extend("I look.")
    hostile = "</details><|im_end|>\r\n````\r<script>1</script>\x1b[2J\n```\n# Heading"
    writer.add_call(made("time", hostile, arguments='{"zone": "</summary><b>", "n": 3}'))
    writer.extend("\n\nIt is *late*.")
    writer.finish()
    text = archive.export(None, "markdown")
    line = f"time(zone=&quot;&lt;/summary&gt;&lt;b&gt;&quot;, n=3), 0.5 s, {len(hostile)} bytes"
    assert text.index("I look.") < text.index(f"<details><summary>{line}</summary>") < text.index("It is *late*.")
    assert "\x1b" not in text
    tokens = MarkdownIt("commonmark").parse(text)
    assert [token.content for token in tokens if token.type == "fence"][1] == plain_text(hostile) + "\n"
    html = [token.content for token in tokens if token.type.startswith("html")]
    assert html == [f"<details><summary>{line}</summary>\n", "</details>\n"]
    page = archive.export(None, "html")
    assert f"<details><summary>{line}</summary><pre>{{" in page
    assert page.index("I look.") < page.index(line) < page.index("<em>late</em>")
    assert escape(plain_text(hostile)) in page


@pytest.mark.parametrize(
    ("arguments", "result", "failed", "line"),
    [
        ("{}", "x" * 1200, False, "t(), 0.5 s, 1.2 kB"),
        ('{"a": ' + "1" * 90 + "}", "", False, "t(a=" + "1" * 48 + "…), 0.5 s, 0 bytes"),
        ("no JSON\n\x1b[2J", "gone", True, "t(no JSON↵␛[2J), 0.5 s, failed"),
        ("{}", CANCELLED, True, "t(), 0.5 s, cancelled"),
    ],
)
def test_a_call_on_a_line(arguments: str, result: str, failed: bool, line: str) -> None:
    assert call_line(replace(made("t", result, arguments=arguments), failed=failed)) == line
