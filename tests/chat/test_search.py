"""Search takes whatever is typed and finds what a reader would call a match."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Hit
from tests.chat.conftest import say

TEXTS = {
    "paint": "The red house on the hill, painted by Zoë.",
    "code": "Use c++ or c#; foo_bar(x) -> y, 100% sure. It's don't.",
    "cjk": "今日は東京タワーに行きました",
    "emoji": "party 🎉 time",
    "plain": "c is a letter, and so is y",
}


@pytest.fixture
def library(archive: Archive) -> Archive:
    for title, text in TEXTS.items():
        chat = archive.new_chat(title=title)
        say(archive, chat.id, "question", text)
    return archive


def where(hits: list[Hit]) -> list[str]:
    return sorted({hit.title for hit in hits})


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("house red", ["paint"]),
        ('"red house"', ["paint"]),
        ('"house red"', []),
        ("hous", ["paint"]),
        ("hous red", []),  # only the last word may be a beginning
        ("HOUSE", ["paint"]),
        ("zoe", ["paint"]),
        ("c++", ["code"]),
        ("c#", ["code"]),
        ("->", ["code"]),
        ("foo_bar", ["code"]),
        ("100%", ["code"]),
        ("don't", ["code"]),
        ("東京", ["cjk"]),
        ("🎉", ["emoji"]),
        ("party 🎉", ["emoji"]),
        ("paint", ["paint"]),
        ("question", sorted(TEXTS)),
        ("nowhere", []),
        ("", []),
        ("   ", []),
        ("AND", ["code", "paint", "plain"][2:]),
        ('"unclosed red hou', []),
        ('"red hou', ["paint"]),
    ],
)
def test_what_is_found(library: Archive, query: str, found: list[str]) -> None:
    assert where(library.search(query)) == found


def test_hits_say_where_the_words_are(library: Archive) -> None:
    for query, marked in (("red hou", ["red", "house"]), ("🎉", ["🎉"]), ("東京", ["東京"])):
        (hit,) = [hit for hit in library.search(query) if hit.message_id is not None]
        assert [hit.snippet[start:end] for start, end in hit.marks] == marked
        assert "\n" not in hit.snippet
    (title, *_) = library.search("paint")
    assert (title.message_id, title.title, title.marks) == (None, "paint", ((0, 5),))


def test_only_what_is_still_there_is_found(library: Archive) -> None:
    (hit,) = [hit for hit in library.search("house") if hit.message_id is not None]
    deletion = library.delete_message(hit.message_id or 0)
    assert library.search("house") == []
    library.undo(deletion.id)
    deletion = library.delete_chat(hit.chat_id)
    assert library.search("house") == []
    library.undo(deletion.id)
    assert where(library.search("house")) == ["paint"]


def test_a_limit(library: Archive) -> None:
    assert len(library.search("question", limit=3)) == 3
    assert library.search("question", limit=0) == []


def test_an_answer_is_found_once_it_has_ended(archive: Archive) -> None:
    writer = archive.begin_answer(archive.append_user(archive.new_chat().id, "x").id)
    writer.extend("zebra")
    writer.flush()
    assert archive.search("zebra") == []
    writer.finish()
    assert len(archive.search("zebra")) == 1


@pytest.fixture(scope="module")
def shared() -> Iterator[Archive]:
    with Archive(None) as archive:
        for title, text in TEXTS.items():
            say(archive, archive.new_chat(title=title).id, title, text)
        yield archive


typed = st.text(
    st.one_of(st.sampled_from("\"'*^:()-+%_\\ anreorNEARORNOT{}[]#🎉東\x00\n"), st.characters()), max_size=30
)


@given(typed)
def test_any_input_is_a_query(shared: Archive, text: str) -> None:
    for hit in shared.search(text):
        assert all(0 <= start < end <= len(hit.snippet) for start, end in hit.marks)


@given(st.sampled_from(sorted(TEXTS.values())), st.data())
def test_any_words_of_a_text_find_it(shared: Archive, text: str, data: st.DataObject) -> None:
    words = text.split()
    start = data.draw(st.integers(0, len(words) - 1))
    query = " ".join(words[start : data.draw(st.integers(start + 1, len(words)))])
    for typed_query in (query, f'"{query}"'):
        found = [shared.message(hit.message_id).content for hit in shared.search(typed_query) if hit.message_id]
        assert text in found
