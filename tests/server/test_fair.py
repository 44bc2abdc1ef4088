"""Who waits for whom, counted in chunks and passes and never in seconds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from localspec.engine.loop import Loop
from localspec.llama.cache.context import Context
from localspec.runtime.engine import Engine
from localspec.types import Feed, Tokens
from tests.server.conftest import CONTEXT, SLOTS
from tests.server.held import eventually, send, stopped
from tests.server.live import Live, engine_of, user

GRID = 512
ENDLESS: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "speculative": {"enabled": False}}


@pytest.fixture
def engine(live: Live) -> Engine:
    """The one that answers."""
    return engine_of(live.service.pool)


@pytest.fixture
def work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...] | int]:
    """What the engine does, as it does it: the slot of a prompt's chunk, or all slots of a pass."""
    log: list[tuple[int, ...] | int] = []
    chunk, decode = Context.prefill_chunk, Context.decode

    def chunk_seen(self: Context, slot: int, *rest: Any) -> int:
        if self is engine.loaded.context:
            log.append(slot)
        return chunk(self, slot, *rest)

    def decode_seen(self: Context, feeds: Sequence[Feed]) -> Any:
        if self is engine.loaded.context:
            log.append(tuple(sorted(feed.slot for feed in feeds)))
        return decode(self, feeds)

    monkeypatch.setattr(Context, "prefill_chunk", chunk_seen)
    monkeypatch.setattr(Context, "decode", decode_seen)
    return log


@pytest.fixture
def crowd() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def queued(live: Live, crowd: ThreadPoolExecutor, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """Sends completions in this order, each once the one before has reached the engine, which is stopped."""
    sent = []
    for body in bodies:
        before = live.service.live["tiny"]
        sent.append(crowd.submit(live.http.post, "/v1/completions", json=body))
        assert eventually(lambda before=before: live.service.live["tiny"] == before + 1)  # type: ignore[misc]
    return sent


def test_a_stream_goes_on_between_any_two_chunks_of_prompts(
    live: Live, engine: Engine, work: list[tuple[int, ...] | int], crowd: ThreadPoolExecutor
) -> None:
    """Three long prompts come with it: what it waits for is one piece at a time, or a rest and a beginning."""
    size = CONTEXT - 100
    long = [engine.tokenize(f"{number} " + "one two three four " * 400)[:size].tolist() for number in "123"]
    with stopped(engine):
        work.clear()
        stream = send(live, "/v1/chat/completions", ENDLESS | {"messages": [user("x")], "stream": True})
        assert eventually(lambda: live.service.live["tiny"] == 1)
        waiting = queued(live, crowd, [ENDLESS | {"prompt": one, "max_tokens": 3} for one in long])
    timings = [one.result().json()["timings"] for one in waiting]
    stream.close()
    assert eventually(lambda: not live.service.live["tiny"])
    ((slot,), *_) = [what for what in work if isinstance(what, tuple)]  # at first it is alone
    chunks = [place for place, what in enumerate(work) if isinstance(what, int) and what != slot]
    assert [one["predicted_n"] for one in timings] == [3, 3, 3]
    assert len(chunks) >= sum(math.ceil((one["prompt_n"] - 1) / GRID) for one in timings) > 3
    for left, right in itertools.pairwise(chunks):
        passes = any(isinstance(what, tuple) and slot in what for what in work[left + 1 : right])
        assert passes or work[left] != work[right]
    assert not any(slot not in what for what in work[: chunks[-1]] if isinstance(what, tuple)), "it is in every pass"


def test_who_comes_first_is_served_first_and_all_slots_alike(
    live: Live,
    engine: Engine,
    work: list[tuple[int, ...] | int],
    crowd: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice as many answers of one length as there are slots, and a request of several among them."""
    served: list[int] = []
    admit = Loop.admit

    def admitted(self: Loop, index: int, request: Any, *rest: Any) -> Any:
        if self is engine.loop:
            served.append(request.seed)
        return admit(self, index, request, *rest)

    monkeypatch.setattr(Loop, "admit", admitted)
    count = 2 * SLOTS
    with stopped(engine):
        work.clear()
        bodies = [ENDLESS | {"prompt": "One day", "max_tokens": 12, "seed": seed} for seed in range(count)]
        waiting = queued(live, crowd, bodies)
    assert [one.result().status_code for one in waiting] == [200] * count
    assert served == list(range(count))
    had = [0] * SLOTS
    for slots in work:
        for slot in slots if isinstance(slots, tuple) else ():
            had[slot] += 1
        assert max(had) - min(had) <= 1, "nobody is left out of a pass twice"
    assert had == [2 * 12] * SLOTS, "a token a pass"


def test_requests_of_several_texts_take_turns(
    live: Live, engine: Engine, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One text does not wait for all of another's 20."""
    texts, late = 20, engine.tokenize("A castle.", special=False)
    order: list[bool] = []
    begun = Event()
    embed = engine.embed

    def embedded(tokens: Tokens, cancel: Callable[[], bool] | None = None) -> Any:
        order.append(len(tokens) == len(late) and bool((tokens == late).all()))
        begun.set()
        if len(order) == 1:
            assert eventually(lambda: "waiters:1" in repr(live.service._reader))
        return embed(tokens, cancel)

    monkeypatch.setattr(engine, "embed", embedded)
    many = crowd.submit(live.http.post, "/v1/embeddings", json={"input": ["one two"] * texts})
    assert begun.wait(60)
    assert live.http.post("/v1/embeddings", json={"input": "A castle."}).status_code == 200
    assert many.result().status_code == 200
    assert order == [False, True] + [False] * (texts - 1)
