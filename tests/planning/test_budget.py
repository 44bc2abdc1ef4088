"""What may be lost is what the module says, whatever the passes bring."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.planning.budget import ANSWER, OPENING, SHARE, Budget

passes = st.lists(st.tuples(st.floats(0.5, 8.0), st.floats(0.0, 3.0)), max_size=60)
"""Per pass: plain passes that its tokens are worth, and the share of what is left that it loses (negative: saves)."""


@given(answers=st.lists(passes, min_size=1, max_size=6), opening=st.floats(0.0, OPENING))
def test_no_text_loses_more_than_the_promise(answers: list[list[tuple[float, float]]], opening: float) -> None:
    budget = Budget(opening)
    lost_ever = 0.0
    for answer in answers:
        budget.begin()
        left_before, plain_time, lost = budget.opening, 0.0, 0.0
        for plain, share in answer:
            loss = min(share - 1.0, 1.0) * max(0.0, budget.passes)  # a plan never lets a pass lose more than is left
            spent = max(0.0, plain + loss)
            budget.book(plain, spent)
            plain_time += plain
            lost += spent - plain
            assert lost <= SHARE * plain_time + ANSWER + left_before + 1e-9
        lost_ever += max(0.0, lost - SHARE * plain_time - ANSWER)
    assert lost_ever <= opening + 1e-6, "beyond its own, all answers together lose the opening once"


def test_savings_of_one_answer_are_no_reason_to_lose_them_in_the_next() -> None:
    budget = Budget(0.0)
    budget.book(100.0, 10.0)
    assert budget.passes > 90.0
    budget.begin()
    assert budget.passes == ANSWER


def test_what_an_answer_lost_beyond_its_own_is_gone() -> None:
    budget = Budget(5.0)
    budget.book(0.0, 4.0)
    budget.begin()
    assert budget.opening == 2.0
    budget.write_off(100.0)
    budget.begin()
    assert (budget.opening, budget.passes) == (0.0, ANSWER)


def test_an_opening_is_never_more_than_the_constant() -> None:
    assert Budget(1e9).opening == OPENING
    assert Budget(-3.0).opening == 0.0
