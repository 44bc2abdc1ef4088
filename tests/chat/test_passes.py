"""Origin data: what is written can be read, in few bytes, and damaged bytes are refused with a sentence."""

from __future__ import annotations

import json
import sqlite3
import zlib
from contextlib import closing, suppress
from pathlib import Path

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
    monkeypatch.setattr("localspec.chat.archive.passes._MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="too large"):
        decode([encode([], {})[:1] + zlib.compress(b"0" * 100_000)])


EARLIER = (
    "01789c63e2e798b0909f9d8135a52831ad849999e50b3313d795442666c6c3ec8c890067ef06eb",
    "01789c63626060cbc9cfcf2e2d6066656367666060626262647ab85c88f3c1b1687146d6c37bf20eaf078a30b1a61425a69530323030303e582e"
    "c4f49f010083280e9d",
)
"""Two parts that 0.2 wrote of the passes below: no draft, a chain, a tree, several drafters without a next token."""
EARLIER_PASSES = [
    PassRecord("", (), (), (), 7, 1, 0.25),
    PassRecord("draft", (3, 4, 500), (-1, 0, 1), (0, 1), 9, 4, 0.0125),
    PassRecord("lookup", (5, 6, 7), (-1, -1, 1), (1, 2), 300000, 9, 1.5),
    PassRecord("ünï", (1, 2), (-1, 0), (), -1, 3, 0.0, ("draft", "ünï")),
]


def test_rows_of_earlier_versions_are_read_and_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    with Archive.open(file) as archive:
        question = archive.append_user(archive.new_chat().id, "x")
        answer = archive.begin_answer(question.id).finish("stopped").id
    with closing(sqlite3.connect(file)) as connection, connection:
        rows = [(answer, at, bytes.fromhex(part)) for at, part in enumerate(EARLIER)]
        connection.executemany("INSERT INTO passes (message, part, data) VALUES (?, ?, ?)", rows)
    with Archive.open(file) as archive:
        replay = archive.replay(answer)
        assert replay.passes == EARLIER_PASSES
        assert replay.pieces == {7: b"a", 3: b"\xc3", 300000: b"\xff\0"}
        writer = archive.resume_answer(answer)
        writer.extend("more", record=EARLIER_PASSES[0])
        writer.finish()
        assert archive.replay(answer).passes == [*EARLIER_PASSES, EARLIER_PASSES[0]]


@given(st.sampled_from(EARLIER), st.data())
def test_damaged_rows_of_earlier_versions_are_refused_or_harmless(part: str, data: st.DataObject) -> None:
    packed = bytes.fromhex(part)
    whole = bytearray(zlib.decompress(packed[1:]))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(whole), bytes(whole[:at]), data.draw(st.binary(max_size=40))):
        with suppress(UsageError):  # anything else fails the test
            decode([packed[:1] + zlib.compress(damaged)])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=30))
def test_json_of_others_is_refused_or_harmless(value: object) -> None:
    for content in (
        value,
        [value, {}],
        [[], value],
        [[], {"x": value}],
        [[], {"1": value}],
        [[[value]] * 8, {}],
        [[[""], [[1]], [[-1]], [[0]], [value], [2], [0.1], [[]]], {}],
    ):
        with suppress(UsageError):
            decode([encode([], {})[:1] + zlib.compress(json.dumps(content).encode())])


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
