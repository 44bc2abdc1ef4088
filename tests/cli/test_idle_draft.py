"""A draft that is loaded and never used is said once, with the reason; a draft that is used is not."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.cli.commands.run import ENOUGH_TRIALS, FEWEST_PASSES, idle_draft, reason
from localspec.engine.stats import RequestStats
from localspec.planning import plan
from localspec.planning.acceptance import CONFIDENCE_CELLS
from localspec.planning.costs import DraftCosts, Knowledge, PassCosts
from localspec.runtime.engine import Engine
from tests.cli.conftest import Command

PROMPT = "Repeat this text exactly: seven green boats and a red lamp"
NEVER = "The draft model was loaded and never used: "


@pytest.fixture(scope="module")
def own_pair(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path, tiny_draft: Path) -> tuple[Path, Path]:
    """The bundled pair's files elsewhere, as a user's own."""
    folder = tmp_path_factory.mktemp("own")
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    shutil.copy(tiny_target, target)
    shutil.copy(tiny_draft, draft)
    return target, draft


@pytest.fixture(scope="module")
def engine(own_pair: tuple[Path, Path]) -> Iterator[Engine]:
    with Engine.load(target=own_pair[0], draft=own_pair[1], context=256) as engine:
        yield engine


def answer(passes: int, **drafted: int) -> RequestStats:
    """Figures of an answer with so many passes and drafts."""
    return RequestStats(
        passes=passes,
        generated=passes,
        drafted_by_drafter=Counter(drafted),
        draft_passes=max(drafted.values(), default=0),
    )


def test_only_a_draft_that_was_in_no_pass_of_many(engine: Engine) -> None:
    assert idle_draft(engine, answer(FEWEST_PASSES)).startswith(NEVER)
    assert idle_draft(engine, answer(FEWEST_PASSES, lookup=9)).startswith(NEVER)
    assert idle_draft(engine, answer(FEWEST_PASSES - 1)) == ""
    assert idle_draft(engine, answer(1000, draft=1)) == ""


def test_nothing_is_said_where_settings_leave_no_drafts(own_pair: tuple[Path, Path]) -> None:
    target, draft = own_pair
    for options in ({"max_draft_tokens": 0}, {"drafter": "lookup"}):
        with Engine.load(target=target, draft=draft, context=256, **options) as engine:
            assert idle_draft(engine, answer(1000)) == ""


def test_nothing_is_said_of_the_bundled_pair() -> None:
    with Engine.load(context=256) as engine:
        assert engine.loaded.trained == ("draft",)
        assert idle_draft(engine, answer(1000)) == ""


def known(guess: float, trials: int, right: float) -> Knowledge:
    """A pass takes 10 ms, a guess `guess` seconds; so many guesses were scored."""
    found = Knowledge(costs=PassCosts({64: {1: 0.010, 2: 0.011}}), draft_costs={"draft": DraftCosts({1: guess})})
    table = found.acceptance["draft"]
    table.rates[CONFIDENCE_CELLS] = right
    table.trials[CONFIDENCE_CELLS] += trials
    return found


def test_the_reason_is_what_the_plan_knows() -> None:
    enough = int(ENOUGH_TRIALS)
    slow = reason("draft", known(0.006, enough, 0.9), answer(100), 64)
    assert "a guess of it takes about 6 ms and a pass of the target about 10 ms" in slow
    wrong = reason("draft", known(0.004, enough, 0.12), answer(100), 64)
    assert wrong == "its guesses are right 12% of the time, which is too rarely to pay"
    beaten = reason("draft", known(0.004, enough - 1, 0.12), answer(100, lookup=50), 64)
    assert "(lookup)" in beaten
    unknown = reason("draft", known(0.004, enough - 1, 0.12), answer(100, lookup=49), 64)
    assert "would not have paid" in unknown


@pytest.mark.parametrize("terminal", [True, False])
def test_run_says_it_once_and_to_a_terminal_only(
    command: Command, monkeypatch: pytest.MonkeyPatch, own_pair: tuple[Path, Path], terminal: bool
) -> None:
    """No draft pays in this plan: it asks for more tokens than an answer has. Copies may still be tried."""
    monkeypatch.setattr(plan, "LEAST_GAIN", 1e9)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    pair = ("--target", str(own_pair[0]), "--draft", str(own_pair[1]), "--context", "256")
    end = _end_tokens(own_pair[0])
    done = command("run", PROMPT, *pair, *end, "--max-tokens", str(3 * FEWEST_PASSES), "--temperature", "0")
    assert done.code == 0, done.err
    assert done.err.count(NEVER) == (1 if terminal else 0)
    assert NEVER not in done.out
    drafted = command("run", PROMPT, *pair, *end, "--max-tokens", "80", "--temperature", "0", "--drafter", "draft")
    assert NEVER not in drafted.err


def _end_tokens(target: Path) -> list[str]:
    """Options that keep an answer going."""
    with Engine.load(target=target, context=64) as engine:
        return [word for token in engine.loaded.model.end_tokens for word in ("--logit-bias", f"{token}=-inf")]
