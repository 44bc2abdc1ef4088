"""Worlds that look like machines: curves of published models, noise as it was recorded, prompts that have their price.

`python -m tests.planning.machines` prints for each world the speed over plain decoding, the worst answer's loss beside
what the promise allows, what was reached of the best fixed choice from the third answer on, and what each answer
reached of its own: the lowest of the first two answers ("early"), the lowest and the mean of the others. Estimates are
wrong by 0.1 to 3 in what rows cost, other programs come and go, or an earlier run has left wrong costs. The clock is
virtual; loss and speed count the host time that the plan is given there.

A recorded pass is a slice of the machine's time: it says how long a plain pass took then, over the quiet median, and
for how long threads waited for a CPU. A pass of many rows runs through many slices, as plain decoding would.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, DraftRequest, History, Outcome, Verdict
from localspec.planning.budget import LOOK_SHARE, LOSS_PASSES, LOSS_SHARE
from localspec.planning.costs import MOST_KEPT_PASSES, Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan
from localspec.types import LogitRows, Noise, SamplingParams
from tests.fakes import draft_request
from tests.planning.simulator import IDLE, LOOK, STREAMS, Clock, Curve, Regret

NOISE_FILE = Path(__file__).parents[1] / "data" / "pass_noise.json"
PLAIN = 0.010
"""Seconds of a plain pass of SmolLM2-135M Q4_1 on two cores with AVX2."""
LONGEST = 15
"""Nodes of a draft at most."""
PROMPT_NOISE = 46
"""Tokens of a prompt."""
LONG = 160
"""Tokens of an answer in which something changes."""
CHOICES = (0, 1, 3, 7, 15)
"""Nodes of the fixed choices that each answer is compared with."""
LATER = 2
"""Answers that are for learning, where the rest is compared with the best fixed choice."""


def through(points: dict[int, float]) -> Curve:
    """Straight lines between these multiples of a plain pass, by width."""
    widths, ratios = list(points), list(points.values())
    last = (ratios[-1] - ratios[-2]) / (widths[-1] - widths[-2])

    @cache
    def ratio(width: int) -> float:
        beyond = last * max(0, width - widths[-1])
        return float(np.interp(width, widths, ratios)) + beyond

    return lambda width, length: PLAIN * ratio(width) * (1.0 + length / 8000)


CURVES: dict[str, Curve] = {
    "Q4_1 not packed, AVX2": through({1: 1.0, 2: 1.52, 3: 2.56, 4: 3.25, 6: 4.95, 8: 4.84, 16: 9.45}),
    "Q4_K_M, AVX2": through({1: 1.0, 2: 1.16, 3: 1.69, 4: 2.34, 6: 3.3, 8: 3.9, 16: 8.0}),
    "Q8_0, AVX-512": through({1: 1.0, 8: 1.1, 16: 1.71}),
}
"""SmolLM2-135M and Qwen2.5-Coder-1.5B with AVX2 (issue 57), and 1 B with AVX-512 (docs/performance.md)."""


@dataclass
class Text:
    """What a copying drafter finds at each position."""

    right: npt.NDArray[np.bool_]
    matched: npt.NDArray[np.int64]
    """Tokens that match before it; a draft needs two."""

    @staticmethod
    def of(copied: float, places: int, seed: int) -> Text:
        """Stretches of 24 to 60 tokens, this share of them copied; elsewhere matches are few, short, mostly wrong."""
        random = np.random.default_rng(seed)
        right, matched = np.zeros(places, dtype=bool), np.zeros(places, dtype=np.int64)
        start = 0
        while start < places:
            end = min(places, start + int(random.integers(24, 60)))
            span = np.arange(end - start)
            if random.random() < copied:
                right[start:end] = random.random(len(span)) < 0.98
                matched[start:end] = np.minimum(span, 5)
            else:
                right[start:end] = random.random(len(span)) < 0.15
                matched[start:end] = 2 * (random.random(len(span)) < 0.3)
            start = end
        return Text(right, matched)


Pattern = Callable[[Text], Text]
"""What becomes of a text that was drawn."""


def from_token(first: int) -> Pattern:
    """Copies begin with this token of an answer of LONG tokens; nothing matches before."""

    def pattern(text: Text) -> Text:
        begun = np.arange(len(text.right)) % LONG >= first
        return Text(text.right & begun, text.matched * begun)

    return pattern


def one_wrong_of(count: int) -> Pattern:
    """The last of so many guesses is wrong, again and again; always a match of five tokens."""

    def pattern(text: Text) -> Text:
        places = np.arange(len(text.right))
        return Text(places % count < count - 1, np.full(len(places), 5))

    return pattern


class Copier:
    """A drafter of such a text, with the length of the match as its confidence. What it guesses for slots behind the
    first is wrong."""

    name, needs, free = "lookup", NEEDS_NOTHING, True

    def __init__(self, text: Text, clock: Clock, look: float, idle: float) -> None:
        """`look`, `idle`: host seconds of a call, and of a pass."""
        self.text, self.start, self.clock, self.look, self.idle = text, 0, clock, look, idle

    def missing(self, slot: int, history: History) -> int:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.clock.now += self.look
        return [self._guess(one.max_nodes, self.start + len(one.history), one.slot) for one in requests]

    def _guess(self, nodes: int, place: int, slot: int) -> Draft:
        matched = 5 if slot else int(self.text.matched[place])
        if matched < 2 or nodes < 1:
            return EMPTY_DRAFT
        right = np.zeros(nodes) if slot else self.text.right[place : place + nodes]
        confidence = np.full(len(right), matched, dtype=np.float32)
        return Draft.chain(right.astype(np.int32), None, confidence, self.name)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self.clock.now += self.idle

    def close(self) -> None:
        pass


class Machine:
    """Plays recorded slices; `phases` says for each answer which recording."""

    def __init__(self, phases: Callable[[int], str], seed: int) -> None:
        recorded = json.loads(NOISE_FILE.read_text())
        self._slices = {name: np.array(recorded[name]) for name in ("quiet", "shared")}
        self._slices["still"] = np.array([[1.0, 0.0]])
        self._phases, self._place = phases, float(np.random.default_rng(seed).integers(0, 900))
        self.answer, self.waited = 0, 0.0

    def run(self, work: float) -> float:
        """Seconds that so many seconds of quiet work take now."""
        slices = self._slices[self._phases(self.answer)]
        seconds, left = 0.0, work / PLAIN
        while left > 1e-9:
            part = min(left, 1.0 - self._place % 1.0)
            slow, waiting = slices[int(self._place) % len(slices)]
            seconds += part * slow * PLAIN
            self.waited += part * slow * waiting * PLAIN
            self._place += part
            left -= part
        return seconds

    def claim_delay(self) -> float:
        """As `localspec.llama.library.contention` says it."""
        found, self.waited = self.waited, 0.0
        return found


@dataclass(frozen=True)
class World:
    """A machine, a text, and what is believed at the beginning."""

    name: str
    curve: Curve
    copied: float
    """Share of the text that is a copy."""
    wrong: float = 1.0
    """Of what rows cost, what the estimate says."""
    phases: Callable[[int], str] = lambda answer: "quiet"
    kept: dict[int, tuple[float, float]] = field(default_factory=dict)
    """What an earlier run has left."""
    answers: int = 12
    tokens: int = 100
    look: float = LOOK
    """Plain passes that a look takes. A fixed choice that drafts looks in every pass."""
    idle: float = IDLE
    """Plain passes that the plan takes in a pass besides."""
    pattern: Pattern = lambda text: text
    stall: float = 0.0
    """Plain passes for which the machine stands still, and nobody says so, in the first pass of an answer that drafts.
    No choice's time has it, as it has no other noise."""
    hopeless: bool = False
    """A second slot decodes beside each answer, and all guesses for it are wrong."""

    @property
    def slots(self) -> int:
        return 1 + self.hopeless

    def text(self, seed: int) -> Text:
        """What the answers say, and a little more."""
        return self.pattern(Text.of(self.copied, self.answers * self.tokens + 100, seed))


@dataclass
class Answer:
    """What one took."""

    lost: float
    """Plain passes of that moment."""
    plain: float
    """Quiet seconds of plain decoding."""
    spent: float
    """Quiet seconds of its passes, and the host's."""
    drafts: int


def worlds() -> list[World]:
    """All of them."""
    found = []
    for name, curve in CURVES.items():
        for copied in (0.0, 0.3, 0.9):
            told = [(f"{name}, copies {copied}, estimate x {wrong}", wrong) for wrong in (0.1, 0.3, 1.0, 3.0)]
            found += [World(title, curve, copied, wrong) for title, wrong in told]
            found.append(World(f"{name}, copies {copied}, shared", curve, copied, phases=lambda _: "shared"))
            comes = World(
                f"{name}, copies {copied}, shared now and then",
                curve,
                copied,
                phases=lambda answer: "shared" if answer // 2 % 2 else "quiet",
            )
            planted = dict.fromkeys(range(2, 17), (3.2, MOST_KEPT_PASSES))
            found += [comes, World(f"{name}, copies {copied}, kept costs 3.2", curve, copied, kept=planted)]
    return found


def changing_worlds() -> list[World]:
    """Texts that change, dear planning, stalls, and two slots (issue 72)."""
    found = []
    for name, curve in CURVES.items():
        found.append(World(f"{name}, copies from token 60 on", curve, 1.0, pattern=from_token(60)))
        found.append(World(f"{name}, copies 0.9, a stall of ten passes", curve, 0.9, stall=10.0))
        for copied, look in product((0.0, 0.9), (0.03, 0.1)):
            found.append(World(f"{name}, copies {copied}, a look costs {look}", curve, copied, look=look))
    for name, curve in (*CURVES.items(), ("a row costs 0.9", through({1: 1.0, 2: 1.9}))):
        found.append(World(f"{name}, three guesses right and one wrong", curve, 1.0, pattern=one_wrong_of(4)))
    found.append(replace(found[-1], name=f"{found[-1].name}, a stall", stall=10.0))
    found.append(World("Q8_0, AVX-512, copies 0.9 beside a hopeless slot", CURVES["Q8_0, AVX-512"], 0.9, hopeless=True))
    return [replace(world, tokens=LONG, answers=8) for world in found]


RECORDED = World(
    "SmolLM2-135M, dialogue of a pirate and a librarian",
    through({1: 1.0, 8: 1.5}),
    1.0,
    pattern=lambda text: from_token(30)(one_wrong_of(8)(text)),
    answers=8,
    tokens=LONG,
    look=0.36 / 5.4,
)
"""SmolLM2-135M Q4_1 at temperature 0, recorded for issue 72: plain passes of 5.4 ms, 0.31 to 0.40 ms of the host a
look. No copy was found in 30 passes; of then 128 guesses in 19 passes 111 were right, and the answer took what 61 to 62
plain passes do: 1.5 each of these 19. In two of three runs planning had used up before what an answer may lose."""


def knowledge(world: World) -> Knowledge:
    """What is believed before the first answer."""
    slope = world.wrong * (world.curve(8, 0) / world.curve(1, 0) - 1.0) / 7.0
    table = {
        length: {width: 0.004 * (1.0 + slope * (width - 1)) * (1.0 + length / 8000) for width in range(1, LONGEST + 2)}
        for length in (0, 4096)
    }
    costs = PassCosts(table, estimated=True, prompt_row=0.8)
    costs.recall(world.kept)
    return Knowledge(costs)


def simulate(world: World, seed: int = 1) -> list[Answer]:
    """What each answer of a world took."""
    machine, clock = Machine(world.phases, seed), Clock()
    plain = world.curve(1, 0)
    copier = Copier(world.text(seed), clock, world.look * plain, world.idle * plain)
    plan = AdaptivePlan([copier], None, knowledge(world), longest=LONGEST, clock=clock, delayed=machine.claim_delay)
    found = []
    for number in range(world.answers):
        machine.answer, copier.start = number, number * world.tokens - PROMPT_NOISE
        found.append(_answer(world, plan, machine, clock))
    return found


def _answer(world: World, plan: AdaptivePlan, machine: Machine, clock: Clock) -> Answer:
    histories, curve = [History([1] * PROMPT_NOISE) for _ in range(world.slots)], world.curve
    rows = LogitRows.from_matrix(np.zeros((1, 2), dtype=np.float32))
    slope = (curve(16, 0) - curve(1, 0)) / 15.0
    plan.read(PROMPT_NOISE - 1, 0, machine.run(curve(1, 0) + 0.8 * slope * (PROMPT_NOISE - 2)))
    end, found = PROMPT_NOISE + world.tokens, Answer(0.0, 0.0, 0.0, 0)
    while (room := end - len(histories[0])) > 0:
        requests = [
            draft_request(slot, history, most, most, SamplingParams(temperature=1.0), Noise(1), room=most + 1)
            for slot, (history, most) in enumerate(zip(histories, (room - 1, world.tokens), strict=False))
        ]
        began, length = clock.now, len(histories[0])
        proposal = plan.draft(STREAMS, requests, [1] * world.slots)
        drafts, outcomes = proposal.drafts, []
        for request, draft in zip(requests, drafts, strict=True):
            accepted = len(draft) if draft.tokens.all() else int(draft.tokens.argmin())
            request.history.append([1] * (accepted + 1))
            verdict = Verdict(np.arange(accepted, dtype=np.int32), 1)
            outcomes.append(Outcome(request.slot, request.history, draft, verdict, rows))
        work = curve(world.slots + sum(map(len, drafts)), length)
        plain = sum(curve(world.slots, place) for place in range(length, len(histories[0])))
        drafted = any(map(len, drafts))
        stall = world.stall * curve(1, length) if drafted and not found.drafts else 0.0
        seconds = machine.run(work) + stall
        plan.learn(proposal, outcomes, seconds)
        work += clock.now - began
        clock.now += seconds
        found.spent += work
        found.plain += plain
        found.lost += (work - plain) / curve(world.slots, length)
        found.drafts += drafted
    return found


def fixed(world: World, text: Text, nodes: int) -> list[float]:
    """Quiet seconds of each answer with always so many tokens of a match; 0 = plain, without host time."""
    found, look = [], world.look * world.curve(1, 0) if nodes else 0.0
    for number in range(world.answers):
        place, seconds = 0, 0.0
        while place < world.tokens:
            at = number * world.tokens + place
            count = min(nodes, world.tokens - place - 1) if text.matched[at] >= 2 else 0
            width = 1 + count + world.hopeless * (1 + nodes)
            seconds += world.curve(width, PROMPT_NOISE + place) + look
            right = text.right[at : at + count]
            place += 1 + (count if right.all() else int(right.argmin()))
        found.append(seconds)
    return found


@dataclass(frozen=True)
class Figures:
    """What a world shows."""

    over_plain: float
    lost: float
    """Most plain passes that an answer lost ..."""
    allowed: float
    """... and what it may lose."""
    over_best: float
    """The best fixed choice's seconds over these, later answers only."""
    regret: Regret


def allowed(world: World) -> float:
    """Plain passes that an answer may lose."""
    return (LOSS_SHARE + LOOK_SHARE) * world.tokens + LOSS_PASSES


def figures(world: World, seed: int = 1) -> Figures:
    """Runs it."""
    found = simulate(world, seed)
    text = world.text(seed)
    choices = [fixed(world, text, nodes) for nodes in range(LONGEST + 1)]
    best = zip(*(choices[nodes] for nodes in CHOICES), strict=True)
    return Figures(
        over_plain=sum(one.plain for one in found) / sum(one.spent for one in found),
        lost=max(one.lost for one in found),
        allowed=allowed(world),
        over_best=min(sum(one[LATER:]) for one in choices) / sum(one.spent for one in found[LATER:]),
        regret=Regret.of([min(one) / answer.spent for one, answer in zip(best, found, strict=True)]),
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.planning.machines", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{'world':60}{'over plain':>11}{'lost':>7}{'allowed':>9}{'over best':>11}{Regret.HEADING}")
    for world in [*worlds(), *changing_worlds(), RECORDED]:
        one = figures(world, options.seed)
        line = (
            f"{world.name:60}{one.over_plain:11.3f}{one.lost:7.2f}{one.allowed:9.2f}{one.over_best:11.3f}{one.regret}"
        )
        print(line + (" !" if one.lost > one.allowed else ""))


if __name__ == "__main__":
    main()
