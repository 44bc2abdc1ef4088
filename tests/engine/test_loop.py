"""The loop on fakes: where an answer ends, and what its text is."""

from __future__ import annotations

import pytest

from localspec.engine.interfaces import Draft, Request
from localspec.engine.loop import Loop
from localspec.engine.slot import FinishReason
from localspec.errors import ContextOverflowError
from localspec.planning.plan import FixedPlan
from tests.engine.recital import (
    BANG,
    END,
    EURO1,
    EURO2,
    GREEDY,
    HEL,
    LD,
    LO,
    SMILE1,
    SMILE2,
    VOCABULARY,
    WOR,
    Recital,
    all_of_it,
    recite,
)
from tests.fakes import FakeDrafter, FakeTarget, answer, prompt

both = pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafting"])


@both
def test_an_end_token_ends_the_answer_and_is_its_last_token(drafting: bool) -> None:
    found, target = recite(HEL, LO, END, BANG, BANG, drafting=drafting)
    assert found.tokens == [HEL, LO, END]
    assert found.text == "Hello "
    assert found.finish is FinishReason.STOP
    assert target.cached[0] == [HEL, HEL, LO], "nothing behind the end, and not the end itself: no pass took it"
    assert len(found.events) == (1 if drafting else 3)


@both
def test_end_tokens_can_be_ignored(drafting: bool) -> None:
    found, _ = recite(HEL, END, LO, BANG, drafting=drafting, ignore_end=True, max_tokens=4)
    assert found.tokens == [HEL, END, LO, BANG]
    assert found.text == "Hello !"
    assert found.finish is FinishReason.LENGTH


@both
@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        ("lo w", "Hel", [HEL, LO, WOR]),
        ("Hel", "", [HEL]),
        ("world!", "Hello ", [HEL, LO, WOR, LD, BANG]),
        ("o worl", "Hell", [HEL, LO, WOR, LD]),
    ],
)
def test_a_stop_string_across_tokens(stop: str, text: str, tokens: list[int], drafting: bool) -> None:
    found, target = recite(HEL, LO, WOR, LD, BANG, BANG, BANG, drafting=drafting, stop=("zz", stop))
    assert found.text == text
    assert found.tokens == tokens
    assert found.finish is FinishReason.STOP
    assert target.cached[0] == [HEL, *tokens[:-1]]


@both
def test_held_back_text_comes_when_no_stop_string_does(drafting: bool) -> None:
    found, _ = recite(HEL, LO, WOR, LD, END, drafting=drafting, stop=("world!",))
    assert found.text == "Hello world"
    assert found.finish is FinishReason.STOP
    found, _ = recite(HEL, LO, WOR, LD, BANG, drafting=drafting, stop=("world!",), max_tokens=4)
    assert found.text == "Hello world"
    assert found.finish is FinishReason.LENGTH


@both
@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_max_tokens_is_kept_to_inside_a_draft(max_tokens: int, drafting: bool) -> None:
    found, _ = recite(HEL, LO, WOR, LD, BANG, HEL, LO, WOR, drafting=drafting, max_tokens=max_tokens)
    assert found.tokens == [HEL, LO, WOR, LD, BANG, HEL, LO][:max_tokens]
    assert found.finish is FinishReason.LENGTH
    assert found.stats.generated == max_tokens


def test_no_draft_is_asked_for_beyond_max_tokens_or_the_context() -> None:
    drafter = all_of_it(*[LO] * 30)
    loop = Loop(FakeTarget(Recital(LO), 10, n_ctx=12), FixedPlan([drafter], 6, None), VOCABULARY)
    answer(loop, Request(prompt(HEL), sampling=GREEDY, seed=1, max_tokens=10))
    assert [request.max_nodes for request in drafter.requests] == [6, 2]
    drafter.requests.clear()
    answer(loop, Request(prompt(HEL), sampling=GREEDY, seed=1))
    assert [request.max_nodes for request in drafter.requests] == [6, 4]
    assert all(request.max_depth == request.max_nodes for request in drafter.requests)


def test_a_drafter_that_overdoes_it_still_gets_no_more_than_max_tokens() -> None:
    drafter = FakeDrafter(lambda request: Draft.chain([LO] * 5))
    loop = Loop(FakeTarget(Recital(LO), 10), FixedPlan([drafter], 8, None), VOCABULARY)
    found = answer(loop, Request(prompt(HEL), sampling=GREEDY, seed=1, max_tokens=3))
    assert found.tokens == [LO] * 3
    assert found.stats.generated == 3


@both
@pytest.mark.parametrize("max_tokens", [None, 100])
def test_a_full_context_ends_the_answer(max_tokens: int | None, drafting: bool) -> None:
    found, target = recite(*[LO] * 40, drafting=drafting, max_tokens=max_tokens, n_ctx=20)
    assert found.finish is FinishReason.CONTEXT
    assert len(found.tokens) == 19
    assert len(target.cached[0]) == 19


def test_max_tokens_wins_where_the_context_ends_too() -> None:
    assert recite(LO, max_tokens=9, n_ctx=10)[0].finish is FinishReason.LENGTH


@pytest.mark.parametrize("length", [10, 11, 500])
def test_a_prompt_that_leaves_no_room_is_refused(length: int) -> None:
    loop = Loop(FakeTarget(Recital(LO), 10, n_ctx=10), FixedPlan((), 8, None), VOCABULARY)
    with pytest.raises(ContextOverflowError, match=f"has {length} tokens and the context holds 10"):
        loop.admit(0, Request(prompt(*[LO] * length)))
    assert not loop.active


def test_a_prompt_that_leaves_room_for_one_token_gets_one() -> None:
    loop = Loop(FakeTarget(Recital(LO), 10, n_ctx=10), FixedPlan([all_of_it(*[LO] * 30)], 8, None), VOCABULARY)
    found = answer(loop, Request(prompt(*[LO] * 9), sampling=GREEDY))
    assert found.tokens == [LO]
    assert found.finish is FinishReason.CONTEXT


@both
def test_characters_are_never_split_over_events(drafting: bool) -> None:
    found, _ = recite(HEL, SMILE1, SMILE2, EURO1, EURO2, BANG, END, drafting=drafting)
    assert found.text == "Hel😀€!"
    assert "�" not in "".join(event.text for event in found.events)
    if not drafting:
        assert [event.text for event in found.events] == ["Hel", "", "😀", "", "€", "!", ""]


@both
def test_a_character_cut_off_by_max_tokens_is_marked(drafting: bool) -> None:
    assert recite(HEL, SMILE1, SMILE2, drafting=drafting, max_tokens=2)[0].text == "Hel�"
