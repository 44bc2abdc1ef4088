"""Plain against speculative on published models under `strict`: with every drafter the same bytes."""

from __future__ import annotations

import pytest

from localspec.chat.turn import Message
from localspec.checks.prompts import BenchPrompt
from localspec.checks.verify import DraftSetting, verify
from localspec.types import SamplingParams
from tests.real.published import ALL, INSTRUCT, Real, on

pytestmark = pytest.mark.trial

CODE = """\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        self.balance -= amount
        return self.balance
"""
PROMPTS = (
    BenchPrompt("edit", (Message("user", f"Write this class again with a docstring in every method:\n\n{CODE}"),)),
    BenchPrompt("list", (Message("user", "List ten European countries with their capitals, one a line."),)),
    BenchPrompt(
        "turns", (Message("user", "Tell me a short story about a fox."), Message("user", "Now tell it again."))
    ),
)
SETTINGS = (DraftSetting("lookup", 3), DraftSetting("lookup", 7), DraftSetting("suffix", 5), DraftSetting("habits", 4))


@on(INSTRUCT)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_byte(real: Real, temperature: float) -> None:
    try:
        report = verify(real.engine, PROMPTS, [temperature], SETTINGS, max_tokens=64)
    finally:
        real.engine.configure(drafter="auto", max_draft_tokens=None)
    assert report.forks == []
    assert report.runs == len(PROMPTS) * len(SETTINGS)
    for setting, tally in report.by_setting.items():
        assert tally.inexact == 0, setting
        assert tally.drafted > 0, setting
    assert sum(tally.accepted for tally in report.by_setting.values()) > 0


@on(ALL)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_byte_of_a_completion(real: Real, temperature: float) -> None:
    """As base models are used, too: the text goes on, past what would end an answer."""
    prompt = real.engine.tokenize(f"{CODE}\n\nclass SavingsAccount:\n    def __init__(self, owner, balance=0):\n")
    sampling = SamplingParams(temperature=temperature)
    answers, drafted = {}, 0
    for name in ("none", "lookup", "suffix", "habits"):
        found = real.engine.generate(
            prompt, sampling=sampling, seed=3, max_tokens=96, ignore_end=True, drafter=name, max_draft_tokens=5
        )
        answers[name] = (found.text(), found.tokens)
        drafted += found.stats.drafted
        assert found.stats.exact
    assert answers == dict.fromkeys(answers, answers["none"])
    assert drafted > 0
