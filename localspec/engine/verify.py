"""A draft and the target's rows in, a `Verdict` out. A pure function: its randomness is named by `Noise`."""

from __future__ import annotations

from localspec.engine.interfaces import Draft, Verdict
from localspec.native import kernels
from localspec.types import LogitRows, Noise, Rule, SamplingParams, Tokens


def verify(
    rows: LogitRows, draft: Draft, sampling: SamplingParams, history: Tokens, noise: Noise, rule: Rule
) -> Verdict:
    """Decides which of the draft the target would have said itself, and what it says next.

    Args:
        rows: row 0 follows the last history token, row 1 + i follows node i.
        draft: chain or tree (*block*: chain only).
        sampling: of the request.
        history: int32[n], all tokens so far; the next position is n.
        noise: the request's numbers; `round` must be n unless the rule is *coupled*.
        rule: of the request.
    """
    accepted, next_token = kernels.verify(
        rows, draft.tokens, draft.parents, draft.probs, sampling, history, noise, len(history), rule
    )
    return Verdict(accepted, next_token)
