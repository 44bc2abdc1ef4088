"""Speculation is for few requests at once: what it may spend shrinks as slots fill. A fixed cost curve, no clock."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.interfaces import History, Outcome, Verdict
from localspec.planning.costs import Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan
from localspec.types import LogitRows, Noise, SamplingParams
from tests.fakes import draft_request
from tests.planning.simulator import STREAMS, Clock, Guesser, Process

PASSES, WARM = 150, 50
ROOM = 8


def seconds(width: int) -> float:
    """8 rows cost as much as one, for the weights are read once; what is wider computes for as long as it has rows."""
    return 0.03 * max(1.0, width / ROOM)


def spent(slots: int, chance: float) -> float:
    """Mean number of nodes a slot sends, when so many decode at once and guesses are right with this chance."""
    clock = Clock()
    guesser = Guesser("lookup", Process.of(np.full(4096, chance), seed=slots, spread=0.05), clock)
    costs = PassCosts({128: {width: seconds(width) for width in range(1, 65)}})
    plan = AdaptivePlan([guesser], None, Knowledge(costs), clock=clock)
    histories = [History([1] * (100 + 13 * slot)) for slot in range(slots)]
    rows = LogitRows.from_matrix(np.zeros((1, 2), dtype=np.float32))
    sent = 0
    for number in range(PASSES):
        requests = [
            draft_request(slot, history, 7, 7, SamplingParams(temperature=1.0), Noise(1), room=1000)
            for slot, history in enumerate(histories)
        ]
        proposal = plan.draft(STREAMS, requests, [1] * slots)
        drafts = proposal.drafts
        widths = STREAMS.pass_widths({slot: 1 + len(draft) for slot, draft in enumerate(drafts)})
        outcomes = []
        for slot, (history, draft) in enumerate(zip(histories, drafts, strict=True)):
            accepted = len(draft) if draft.tokens.all() else int(draft.tokens.argmin())
            history.append([1] * (accepted + 1))
            outcomes.append(Outcome(slot, history, draft, Verdict(np.arange(accepted, dtype=np.int32), 1), rows))
        taken = sum(map(seconds, widths))
        clock.now += taken
        plan.learn(proposal, outcomes, taken)
        sent += sum(map(len, drafts)) if number >= WARM else 0
    return sent / slots / (PASSES - WARM)


@pytest.mark.parametrize("chance", [0.6, 0.85])
def test_what_a_slot_may_spend_shrinks_as_slots_fill(chance: float) -> None:
    found = {slots: spent(slots, chance) for slots in (1, 2, 4, 8)}
    assert list(found.values()) == sorted(found.values(), reverse=True), found
    assert found[1] > 6.0, "one request has the machine to itself: what is free is used"
    assert 2.0 < found[2] < 4.0, "two share it"
    assert found[8] < 0.1, "eight fill it: a draft would only make others wait"
