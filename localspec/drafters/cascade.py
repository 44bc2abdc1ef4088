"""Several drafters as one. Whoever plans asks its stages one by one (`engine.adaptive`); asked as a whole it keeps to
their order, and the first draft that is good enough wins: a fixed plan, for rules that need one.

Cheap ones come first. A draft is good enough when its first confidence reaches the drafter's threshold; confidences
of different drafters are never compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.engine.interfaces import EMPTY_DRAFT, Draft, Drafter, DraftRequest, History, Needs, Outcome


@dataclass(frozen=True, slots=True)
class Stage:
    """One drafter of a cascade."""

    drafter: Drafter
    threshold: float = 0.0
    """Confidence its first node needs (prompt lookup: tokens matched)."""

    def accepts(self, draft: Draft) -> bool:
        """Whether a draft is good enough. One that was drawn always is: dropping it for what was drawn would bias."""
        return draft.probs is not None or draft.confidence is None or bool(draft.confidence[0] >= self.threshold)


class Cascade:
    """Asks its stages in order."""

    name = "cascade"

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)
        self.drafters = tuple(stage.drafter for stage in stages)
        self.free = all(drafter.free for drafter in self.drafters)
        layers = {layer for drafter in self.drafters for layer in drafter.needs.hidden_layers}
        constrained = bool(self.drafters) and all(drafter.needs.constraint for drafter in self.drafters)
        self.needs = Needs(tuple(sorted(layers)), constrained)

    def missing(self, slot: int, history: History) -> int:
        return max((drafter.missing(slot, history) for drafter in self.drafters), default=0)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = [EMPTY_DRAFT] * len(requests)
        open_requests = list(range(len(requests)))
        for stage in self._stages:
            asked = [i for i in open_requests if requests[i].allows(stage.drafter.name)]
            answers = stage.drafter.draft([requests[i] for i in asked]) if asked else []
            for i, answer in zip(asked, answers, strict=True):
                if len(answer) and stage.accepts(answer):
                    drafts[i] = answer
            open_requests = [i for i in open_requests if not len(drafts[i])]
        return drafts

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for stage in self._stages:
            stage.drafter.observe(outcomes)

    def close(self) -> None:
        for stage in self._stages:
            stage.drafter.close()
