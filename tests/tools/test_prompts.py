"""Prompts and resources of servers, as they should be and as they should not: a text, or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.text_file import LARGEST
from localspec.errors import Cancelled, UsageError
from localspec.tools.toolbox import Toolbox
from tests.tools.conftest import Connect, demo
from tests.tools.server import ODD
from tests.tools.test_connections import fault


def never() -> bool:
    return False


FORM = "/prompt demo:greet name=... [style=...]"


def test_prompts_of_all_servers_are_listed_with_what_they_are(connect: Connect) -> None:
    toolbox = Toolbox(connect(demo(), demo("alone", name="other")))
    found = toolbox.prompts()
    assert toolbox.notices() == []
    assert found[:2] == [("demo:greet", "Greets↵someone."), ("demo:bare", "")]
    assert found[2][0] == "demo:odd"
    assert found[2][1].isprintable()
    toolbox.off.add("demo")
    assert toolbox.prompts() == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("demo:greet name=Ann", "Hello Ann, plainly."),
        ("demo:greet  style=as one does, x=1  name=Ann Lee ", "Hello Ann Lee, as one does, x=1."),
        ("demo:greet name=\ud800", "Hello ?, plainly."),
        ("demo:bare", "Hello."),
        ("demo:two words", "Hello."),
        ("demo:odd", ODD),
        ("demo:command", "/quit"),
    ],
)
def test_a_prompt_has_the_texts_of_its_messages(connect: Connect, words: str, text: str) -> None:
    assert Toolbox(connect()).prompt(never, words) == f"{text}\n\n{text}"


def test_what_is_no_text_in_a_prompt_is_named(connect: Connect) -> None:
    found = Toolbox(connect()).prompt(never, "demo:mixed").split("\n\n")
    assert found[0] == "[image, image/png, 3 kB: not shown to the model]"
    assert found[2] == "the text of b"
    assert found[-1] == "last"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("demo:greet", f"The prompt demo:greet needs name: {FORM}"),
        ("demo:greet style=x name=", f"The prompt demo:greet needs name: {FORM}"),
        ("demo:greet Ann", f"The prompt demo:greet needs name: {FORM}"),
        ("demo:greet Ann name=Ann", f"The prompt demo:greet takes no 'Ann': {FORM}"),
        ("demo:bare x=1", "The prompt demo:bare takes no 'x=1': /prompt demo:bare"),
        ("demo:gone", "There is no prompt 'demo:gone'; there are: demo:greet, demo:bare, "),
        ("", "There is no prompt ''; there are: demo:greet, demo:bare, "),
    ],
)
def test_words_that_do_not_fit_are_one_sentence(connect: Connect, words: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        Toolbox(connect()).prompt(never, words)
    assert caught.value.message.startswith(sentence)


def test_without_prompts_that_is_said(connect: Connect) -> None:
    with pytest.raises(UsageError, match="there are: none"):
        Toolbox(connect("alone")).prompt(never, "demo:greet")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("demo:huge", f"The server demo gives 10,000,002 bytes; up to {LARGEST:,} can be taken."),
        ("demo:refused", "The server demo gives no text: Not today.↵Never."),
        ("demo:nonsense", "The server demo gives no text."),
    ],
)
def test_a_prompt_that_fails_is_one_sentence_and_its_server_goes_on(
    connect: Connect, words: str, sentence: str
) -> None:
    toolbox = Toolbox(connect())
    assert fault(lambda: toolbox.prompt(never, words)) == sentence
    assert toolbox.prompt(never, "demo:bare") == "Hello.\n\nHello."


def test_prompts_that_change_are_listed_anew(connect: Connect, tmp_path: Path) -> None:
    toolbox = Toolbox(connect(demo("changes", str(tmp_path / "changed"))))
    assert toolbox.prompt(never, "demo:bare")
    assert [name for name, _ in toolbox.prompts()] == ["demo:greet"]


def test_a_prompt_can_be_given_up(connect: Connect) -> None:
    toolbox = Toolbox(connect())
    toolbox.prompts()
    with pytest.raises(Cancelled):
        toolbox.prompt(iter([*[False] * 30, *[True] * 30]).__next__, "demo:hang")


def test_a_server_that_does_not_list_them_is_a_notice_and_has_its_tools(connect: Connect) -> None:
    toolbox = Toolbox(connect("unlisted"))
    assert "add" in [tool.name for tool in toolbox.tools()]
    assert toolbox.prompts() == []
    assert toolbox.notices() == [
        f"The server demo does not list its {kind}: no such method or resource: {kind}/list."
        for kind in ("prompts", "resources")
    ]


def test_resources_are_listed_once_their_servers_run(connect: Connect) -> None:
    toolbox = Toolbox(connect())
    assert toolbox.resources() == []
    toolbox.tools()
    found = dict(toolbox.resources())
    assert [name for name in found if "nonsense" not in name] == [
        "demo:demo://poem",
        "demo:demo://two words",
        "demo:demo://odd",
        "demo:demo://image",
        "demo:demo://huge",
    ]
    assert found["demo:demo://poem"] == "Roses↵are red."
    toolbox.off.add("demo")
    assert toolbox.resources() == []


def test_resources_are_read_as_text(connect: Connect) -> None:
    toolbox = Toolbox(connect())
    names = ["demo:demo://poem", "demo:demo://odd", "demo:demo://two words", "demo:demo://image"]
    assert [toolbox.read(never, name) for name in names] == [
        "Roses are red.\nViolets are blue.",
        ODD,
        "two\n\nwords",
        "[part, image/png, demo://image, 3 kB: not shown to the model]",
    ]


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("demo://huge", f"The server demo gives 10,000,000 bytes; up to {LARGEST:,} can be taken."),
        ("demo://nonsense", "The server demo gives no text."),
        ("demo://gone", "The server demo gives no text: no such method or resource: resources/read."),
    ],
)
def test_a_resource_that_cannot_be_read_is_one_sentence(connect: Connect, uri: str, sentence: str) -> None:
    toolbox = Toolbox(connect())
    assert fault(lambda: toolbox.read(never, f"demo:{uri}")) == sentence


def test_a_server_that_is_off_is_not_asked(connect: Connect) -> None:
    toolbox = Toolbox(connect("exit"))
    toolbox.off.add("demo")
    assert fault(lambda: toolbox.read(never, "demo:demo://poem")) == "The server demo is switched off."
