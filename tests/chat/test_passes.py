"""Origin data: what is written can be read, in few bytes, and damaged bytes are refused with a sentence."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.passes import Replay, decode, encode, tokens_of
from localspec.chat.turn import Message
from localspec.engine.slot import PassRecord
from localspec.errors import UsageError
from localspec.runtime.engine import Engine
from localspec.tui.text.origin_lines import read_passes

token_ids = st.integers(0, 2**31 - 2)


def said(replay: Replay) -> str:
    return "".join(one.text for one in read_passes(replay.passes, lambda token: replay.pieces.get(token, b"")))


@st.composite
def records(draw: st.DrawFn) -> PassRecord:
    """A pass with no draft, a chain, or any tree."""
    guesses = tuple(draw(st.lists(token_ids, max_size=8)))
    count = len(guesses)
    chain = draw(st.booleans())
    parents = tuple(at - 1 if chain else draw(st.integers(-1, at - 1)) for at in range(count))
    accepted = tuple(sorted(draw(st.sets(st.integers(0, count - 1))))) if count else ()
    return PassRecord(
        draw(st.sampled_from(["draft", "lookup", "ünï"])) if count else "",
        guesses,
        parents,
        accepted,
        draw(st.integers(-1, 2**31 - 2)),
        draw(st.integers(0, 300)),
        draw(st.integers(0, 10**9)) / 1e6,
        tuple(draw(st.sampled_from(["draft", "suffix", "ünï"])) for _ in guesses) if draw(st.booleans()) else (),
    )


@given(st.lists(st.lists(records(), max_size=5), max_size=4), st.dictionaries(token_ids, st.binary(max_size=9)))
def test_parts_come_back_as_one_replay(parts: list[list[PassRecord]], pieces: dict[int, bytes]) -> None:
    written = [encode(part, pieces) for part in parts]
    replay = decode(written)
    assert replay.passes == [record for part in parts for record in part]
    assert replay.pieces == (pieces if parts else {})


@given(st.lists(records(), max_size=3), st.data())
def test_damaged_bytes_are_refused_or_harmless(passes: list[PassRecord], data: st.DataObject) -> None:
    whole = bytearray(encode(passes, {1: b"a"}))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(whole), bytes(whole[:at]), data.draw(st.binary(max_size=40))):
        with suppress(UsageError):  # anything else fails the test
            decode([damaged])


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    monkeypatch.setattr("localspec.chat.archive.passes._MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="too large"):
        decode([b"\x01" + zlib.compress(b"\0" * 100_000)])


def test_a_replay_names_the_origin_of_every_token() -> None:
    tree = PassRecord("draft", (5, 6, 7), (-1, -1, 1), (1, 2), 8, 4, 0.01)
    pieces = {5: b"x", 6: "ö".encode()[:1], 7: "ö".encode()[1:], 8: b"!", 9: b"."}
    found = read_passes([tree, PassRecord("", (), (), (), 9, 1, 0.01)], pieces.__getitem__)
    assert [[(token.text, token.drafter, token.depth) for token in one.emitted] for one in found] == [
        [("", "draft", 1), ("ö", "draft", 2), ("!", "", 0)],
        [(".", "", 0)],
    ]


def test_a_live_answer_is_replayed_from_disk_in_few_bytes(archive: Archive) -> None:
    chat = archive.new_chat()
    question = archive.append_user(chat.id, "Repeat this text exactly: Maria bought 12 lanterns in Lisbon. " * 4)
    with Engine.load(kernels="plain") as engine:  # which are cheapest takes seconds to find out
        writer = archive.begin_answer(question.id, piece=engine.loaded.model.piece)
        text, records = "", []
        generation = engine.chat([Message("user", question.content)], seed=1, max_tokens=80)
        for event in generation:
            text += event.text
            if event.record is not None:
                records.append(event.record)
            writer.extend(event.text, record=event.record)
        answer = writer.finish(stats=generation.stats.as_dict())
    replay = archive.replay(answer.id)
    assert [record._replace(seconds=0) for record in replay.passes] == [
        record._replace(seconds=0) for record in records
    ]
    assert answer.content == text
    tokens = [token for one in replay.passes for token in (*(one.guesses[at] for at in one.accepted), one.next_token)]
    assert tokens[: len(generation.tokens)] == generation.tokens
    assert said(replay).startswith(text)
    assert {token for record in replay.passes for token in tokens_of(record)} == set(replay.pieces)
    assert len(encode(replay.passes, {})) < 8 * len(tokens)


def test_an_answer_gone_on_with_keeps_its_beginning(archive: Archive) -> None:
    records = [PassRecord("lookup", (at,), (-1,), (0,), at + 1, 2, 0.5) for at in range(3)]
    question = archive.append_user(archive.new_chat().id, "x")
    writer = archive.begin_answer(question.id, piece=lambda token: b"a")
    for record in records[:2]:
        writer.extend("aa", record=record)
        writer.flush()
    writer.finish("stopped")
    more = archive.resume_answer(writer.message_id, piece=lambda token: b"a")
    more.extend("aa", record=records[2])
    assert more.finish().content == "aaaaaa"
    replay = archive.replay(writer.message_id)
    assert replay.passes == records
    assert said(replay) == "aaaaaa"
