"""Chats that take turns in slots, and chats that go on in another process, are not read anew."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.llama.exact import wide
from localspec.options import Options
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.runtime.kept import caches
from localspec.runtime.kept.caches import CacheFolder
from localspec.types import Tokens

STORY = "Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo. "


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CacheFolder:
    """Where engines made by this test keep chats; what they measured is shared with other tests."""
    found = CacheFolder(10**9, tmp_path / "chats")
    monkeypatch.setattr("localspec.runtime.worker.CacheFolder", lambda budget: CacheFolder(budget, found.directory))
    return found


def load(engines: list[Engine], **settings: Any) -> Engine:
    engines.append(Engine.load(**{"context": 1024, "drafter": "lookup", "max_draft_tokens": 3, **settings}))
    return engines[-1]


def ask(engine: Engine, prompt: Tokens, chat: str | None, count: int = 12) -> Generation:
    return ask_at_once(engine, {chat: prompt}, count)[0]


def ask_at_once(engine: Engine, prompts: Mapping[str | None, Tokens], count: int = 12) -> list[Generation]:
    """Answers that begin together, as far as there are slots for them."""

    def begin() -> list[Generation]:
        options = Options(seed=1, max_tokens=count, ignore_end=True, top_log_probs=0)
        return [engine.generate(prompt, replace(options, chat=chat)) for chat, prompt in prompts.items()]

    found = engine.on_engine_thread(begin)
    for generation in found:
        events = [*generation]
        generation.slot = events[0].slot  # type: ignore[attr-defined]
        generation.values = [  # type: ignore[attr-defined]
            (found.token, found.logit) for event in events for found in event.log_probs
        ]
    return found


def turns(engine: Engine, story: str = STORY, first: int = 600) -> tuple[Tokens, Tokens]:
    """Prompts of the first turn and, once that is answered, of the second."""
    tokens = np.tile(engine.tokenize(story), 60)
    return tokens[:first], tokens[: first + 150]


def next_prompt(first: Generation, second: Tokens) -> Tokens:
    """The second turn's prompt: the first one, its answer, and what is new."""
    answer = np.array(first.tokens, dtype=np.int32)
    length = len(first.request.prompt)
    return np.concatenate([second[:length], answer, second[length:]])


@pytest.mark.parametrize(("kernels", "exact"), [("wide", "auto"), ("wide", "strict"), ("repacked", "strict")])
def test_a_resumed_chat_goes_on_with_the_same_bits(
    folder: CacheFolder, engines: list[Engine], kernels: str, exact: str
) -> None:
    if kernels == "wide" and not wide.available():
        pytest.skip("no wide kernels here")
    settings = {"kernels": kernels, "exact": exact, "cache": "auto" if kernels == "wide" else "bf16"}
    engine = load(engines, **settings)
    first, second = turns(engine)
    answer = ask(engine, first, "one")
    second = next_prompt(answer, second)
    expected = ask(engine, second, "one")  # in the same process
    engine.close()
    folder.remove("one")

    engine = load(engines, **settings)
    assert ask(engine, first, "one").tokens == answer.tokens
    engine.close()
    assert folder.path("one").exists()
    resumed = ask(load(engines, **settings), second, "one")
    all_of_it = kernels == "wide"  # whose cache does not depend on how it came about
    assert resumed.stats.reused_tokens == expected.stats.reused_tokens == (611 if all_of_it else 512)
    assert resumed.values == expected.values  # type: ignore[attr-defined]
    if exact == "strict":
        fresh = ask(load(engines, **settings), second, None)
        assert fresh.stats.reused_tokens == 0
        assert resumed.values == fresh.values  # type: ignore[attr-defined]


OTHER_PROCESS = """
from localspec.runtime.engine import Engine
from localspec.runtime.kept.caches import CacheFolder
from localspec.runtime import worker
from pathlib import Path
import sys
import numpy as np
worker.CacheFolder = lambda budget: CacheFolder(budget, Path(sys.argv[1]))
with Engine.load(context=1024, kernels="plain") as engine:
    tokens = np.tile(engine.tokenize(sys.argv[2]), 60)[:600]
    print(engine.generate(tokens, seed=1, chat="one", max_tokens=12, ignore_end=True).text())
"""


def test_another_process_goes_on(folder: CacheFolder, engines: list[Engine]) -> None:
    """Who drafted in the one has nothing to do with the other."""
    command = [sys.executable, "-c", OTHER_PROCESS, str(folder.directory), STORY]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    engine = load(engines, kernels="plain")
    first, second = turns(engine)
    again = ask(engine, first, "one")
    assert again.stats.reused_tokens == 599  # all but the last
    assert ask(engine, next_prompt(again, second), "one").stats.reused_tokens == 611


KILLED_PROCESS = (
    OTHER_PROCESS.replace("    print(engine", "    engine.work_when_idle()\n    print(engine")
    + """
    import os, signal, time
    while not CacheFolder(1, Path(sys.argv[1])).path("one").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_a_process_that_is_killed_after_an_answer_has_kept_it(folder: CacheFolder, engines: list[Engine]) -> None:
    command = [sys.executable, "-c", KILLED_PROCESS, str(folder.directory), STORY]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == -9
    engine = load(engines, kernels="plain")
    first, _ = turns(engine)
    assert ask(engine, first, "one").stats.reused_tokens == 599  # all but the last


def test_in_idle_time_a_chat_is_written_once_a_part_of_it_is_new(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    chats = engine.chats
    assert chats is not None
    first, second = turns(engine)

    def waits() -> bool:
        return engine.on_engine_thread(lambda: chats.wait) is not None

    def write() -> None:
        engine.on_engine_thread(chats.step)
        engine.on_engine_thread(chats._wait)

    assert not waits()
    answer = ask(engine, first, "one")
    assert waits()
    write()
    assert folder.path("one").exists()
    assert not waits()
    ask(engine, np.concatenate([first, np.array(answer.tokens, np.int32), first[:20]]), "one")
    assert not waits(), "32 of 644 tokens are new"
    ask(engine, next_prompt(answer, second), "one")
    assert waits()
    ask(engine, first, None)
    assert not waits(), "it is nobody's"


def test_what_finds_no_room_is_not_tried_again_and_again(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    chats = engine.chats
    assert chats is not None
    chats._files.budget = 1
    first, _ = turns(engine)
    ask(engine, first, "one")
    engine.on_engine_thread(chats.step)
    assert engine.on_engine_thread(lambda: chats.wait) is None
    assert not folder.path("one").exists()


def test_chats_take_turns_in_the_slot(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    first, second = turns(engine)
    other, _ = turns(engine, OTHER_STORY)
    answer = ask(engine, first, "one")
    assert ask(engine, other, "two").stats.reused_tokens < 10
    assert ask(engine, first[::-1].copy(), None).stats.reused_tokens < 10  # nobody's: a race, a summary
    going_on = ask(engine, next_prompt(answer, second), "one")
    assert going_on.stats.reused_tokens == 611
    assert ask(engine, other, "two").stats.reused_tokens == 599
    assert len(list(folder.directory.iterdir())) == 2


def test_a_file_is_read_only_if_it_spares_more_than_the_slot(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    first, second = turns(engine)
    ask(engine, first[:200], "one")
    ask(engine, second, None)
    assert ask(engine, first, "one").stats.reused_tokens == 599  # what nobody's request left here is more


def test_what_has_not_changed_is_not_written_again(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    first, _ = turns(engine)
    ask(engine, first, "one")
    engine.close()
    before = folder.path("one").stat()
    engine = load(engines)
    ask(engine, first, "one", count=12)
    engine.close()
    assert folder.path("one").stat().st_ino == before.st_ino


OTHER_STORY = "Sort the numbers 4, 2 and 9, then say which was last. "


@pytest.mark.parametrize("slots", [1, 2])
def test_chats_that_answer_at_once_keep_their_caches(
    folder: CacheFolder, engines: list[Engine], slots: int, texts: dict[str, list[list[int]]]
) -> None:
    engine = load(engines, slots=slots)
    (first, second), (third, fourth) = turns(engine), turns(engine, OTHER_STORY)
    one, two = ask_at_once(engine, {"one": first, "two": third})
    assert [one.slot, two.slot] == [0, slots - 1]  # type: ignore[attr-defined]
    again = ask_at_once(engine, {"two": next_prompt(two, fourth), "one": next_prompt(one, second)})
    assert [each.stats.reused_tokens for each in again] == [611, 611]
    engine.close()
    assert folder.path("one").exists()
    assert folder.path("two").exists()

    engine = load(engines, slots=slots)
    more = [np.concatenate([each.request.prompt, np.array(each.tokens, np.int32), first[:40]]) for each in again]
    back = ask_at_once(engine, {"two": more[0], "one": more[1]})
    assert [back[0].slot, back[1].slot] == [0, slots - 1], "each in the other's slot"  # type: ignore[attr-defined]
    assert [each.stats.reused_tokens for each in back] == [len(prompt) - 41 for prompt in more]
    said = [each.tokens for each in (one, two, *again, *back)]
    assert texts.setdefault("said", said) == said, "as with one slot"


@pytest.fixture(scope="module")
def texts() -> dict[str, list[list[int]]]:
    """What the tests of this file have to compare."""
    return {}


def test_a_third_chat_costs_no_cache(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines, slots=2)
    stories = {"one": STORY, "two": OTHER_STORY, "three": "An owl counts ships: 7, 11, 13. "}
    prompts = {chat: turns(engine, story) for chat, story in stories.items()}
    answers = {chat: ask(engine, first, chat) for chat, (first, _) in prompts.items()}
    for chat in ("two", "one", "three"):
        assert ask(engine, next_prompt(answers[chat], prompts[chat][1]), chat).stats.reused_tokens == 611


def test_a_chat_whose_slot_is_at_work_goes_on_in_another(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines, slots=2)
    first, second = turns(engine)
    answer = ask(engine, first, "one")
    long = engine.generate(next_prompt(answer, second), chat="one", seed=1, ignore_end=True)
    next(iter(long))
    beside = ask(engine, next_prompt(answer, second), "one")
    long.cancel()
    assert beside.slot == 1  # type: ignore[attr-defined]
    assert beside.stats.reused_tokens >= 611
    engine.forget()
    assert ask(engine, next_prompt(answer, second), "one").stats.reused_tokens >= 611


def test_nothing_is_kept(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines, chat_cache_gb=0)
    first, second = turns(engine)
    ask(engine, first, "one")
    ask(engine, second, "two")
    engine.forget_chat("one")
    engine.close()
    assert not folder.directory.exists()


def test_short_chats_and_nobodys_are_not_kept(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    first, _ = turns(engine)
    ask(engine, first[:40], "one")
    ask(engine, first, None)
    engine.close()
    assert not folder.directory.exists()


def test_short_memory_is_left_alone(
    folder: CacheFolder, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(engines)
    first, _ = turns(engine)
    size = engine.loaded.context.kv_bytes * 611 // 1024
    ask(engine, first, "one")
    monkeypatch.setattr(caches, "available_bytes", lambda: 2 * size - 2)
    ask(engine, first[::-1].copy(), None)
    assert not folder.directory.exists()
    monkeypatch.setattr(caches, "available_bytes", lambda: 2 * size)
    ask(engine, first, "one")
    ask(engine, first[::-1].copy(), None)
    engine.forget_chat("two")  # waits for the file
    assert folder.path("one").exists()


def test_a_deleted_chat_leaves_the_disk_and_stays_away(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    first, _ = turns(engine)
    ask(engine, first, "one")
    ask(engine, first[::-1].copy(), "two")
    engine.forget_chat("one")
    assert not folder.path("one").exists()
    engine.forget_chat("two")  # it is in the slot, not yet on disk
    engine.close()
    assert list(folder.directory.iterdir()) == []


def test_another_configuration_reads_the_chat_anew(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines, exact="off", wide=False)
    first, _ = turns(engine)
    ask(engine, first, "one")
    engine.close()
    longer = load(engines, exact="off", wide=False, context=1536)
    assert ask(longer, first, "one").stats.reused_tokens == 0


def test_a_damaged_file_is_as_if_it_were_missing(folder: CacheFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    first, _ = turns(engine)
    expected = ask(engine, first, "one")
    engine.close()
    data = bytearray(folder.path("one").read_bytes())
    data[len(data) // 2] ^= 16
    folder.path("one").write_bytes(data)
    engine = load(engines)
    found = ask(engine, first, "one")
    assert found.stats.reused_tokens == 0
    assert found.tokens == expected.tokens
    engine.close()
    assert ask(load(engines), first, "one").stats.reused_tokens == 599  # written anew
