"""Steps that went through JSON are those of the engine: tokens, origins, passes, bytes and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from localspec.chat.archive.passes import tokens_of
from localspec.engine.interfaces import Undrafted
from localspec.engine.slot import Event, FinishReason
from localspec.engine.stats import RequestStats
from localspec.remote.answerer import Hearer, Steps, Teller
from tests.tui.replayer import Recorded, Recording


def events_of(recorded: Recorded) -> Iterator[Event]:
    """As the engine told them; the figures grow with each pass."""
    assert recorded.stats is not None
    last = len(recorded.passes) - 1
    for index, one in enumerate(recorded.passes):
        stats = recorded.stats
        if index < last:
            stats = replace(stats, gaps=stats.gaps[:index], undrafted=Counter({Undrafted.PRICE: index}), exact=False)
        finish = recorded.finish if index == last else None
        yield Event(0, one.text, one.tokens, one.origins, (), finish, stats, one.record)


@pytest.mark.parametrize("joined", [1, 3, 1000])
@pytest.mark.parametrize("name", ["pair", "code", "race"])
def test_a_recorded_answer_comes_through_as_it_was(name: str, joined: int) -> None:
    recording = Recording.load(name)
    for recorded in recording.answers:
        teller, hearer = Teller(recording.pieces.__getitem__), Hearer()
        events, heard = list(events_of(recorded)), list[Steps]()
        for at in range(0, len(events), joined):
            some = events[at : at + joined]
            heard.append(hearer.take(json.loads(json.dumps(teller.told(some, some[-1].stats)))))
            assert hearer.stats == some[-1].stats
            assert hearer.stats.as_dict() == some[-1].stats.as_dict()
        records = [one.record for one in events if one.record is not None]
        assert [token for one in heard for token in one.tokens] == [token for one in events for token in one.tokens]
        assert [origin for one in heard for origin in one.origins] == [one for event in events for one in event.origins]
        assert [record for one in heard for record in one.records] == records
        assert hearer.pieces == {token: recording.pieces[token] for record in records for token in tokens_of(record)}
        assert [one.finish for one in heard] == [*[None] * (len(heard) - 1), recorded.finish]


def test_all_figures_come_through() -> None:
    stats = RequestStats(
        prompt_tokens=9, ttft_seconds=1 / 3, accepted_per_position=[2, 1], gaps=[0.1], row_cost=1.7, exact=False
    )
    stats.accepted_histogram.update({0: 3, 2: 1})
    stats.accepted_by_drafter.update({"draft": 2})
    stats.drafted_by_drafter.update({"draft": 5, "lookup": 1})
    stats.undrafted.update({Undrafted.LOST: 4, Undrafted.NOTHING: 1})
    hearer = Hearer()
    ended = Event(-1, "", (), (), (), FinishReason.CANCELLED, stats)
    assert hearer.take(json.loads(json.dumps(Teller(bytes).told([ended], stats)))).finish is FinishReason.CANCELLED
    assert hearer.stats == stats
    assert hearer.stats.undrafted_reason == stats.undrafted_reason


def test_what_is_there_at_once_is_told_once() -> None:
    stats = RequestStats(gaps=[0.5])
    teller = Teller(bytes)
    assert teller.told([], stats)["gaps"] == [0.5]
    assert teller.told([], stats)["gaps"] == []
    hearer, teller = Hearer(), Teller(bytes)
    read = [hearer.take(teller.told([], stats, progress)).progress for progress in (None, (0, 9), (0, 9), (9, 9))]
    assert read == [None, (0, 9), None, (9, 9)]
