"""Drafts cut to widths that a pass may have."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.interfaces import Draft, Target

MOST_NODES = 64
"""Most nodes of a draft."""


def depth_of(draft: Draft) -> int:
    """Levels of a draft."""
    parents = draft.parents.tolist()
    if parents == list(range(-1, len(parents) - 1)):
        return len(parents)  # a chain
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths)


def fitting(
    target: Target, slots: Sequence[int], pending: Sequence[int], drafts: list[Draft], exact: frozenset[int] | None
) -> list[Draft]:
    """Drafts cut from the end until every pass they make has an allowed width.

    Args:
        target: says how rows become passes.
        slots: those that share the pass.
        pending: rows each of them must decode anyway.
        drafts: one per slot.
        exact: widths a pass may have; None = any.
    """
    longest = max(map(len, drafts), default=0)
    while exact is not None and longest > 0:
        rows = {slot: rows + len(draft) for slot, rows, draft in zip(slots, pending, drafts, strict=True)}
        if all(width in exact for width in target.pass_widths(rows)):
            break
        longest -= 1
        drafts = [draft.truncated(longest) for draft in drafts]
    return drafts
