"""The probe of DESIGN section 5C: which widths give the bits of one-row passes, and what passes cost.

A width counts as exact only if every row it computed, at every length tried, had the same bits as decoding one token
at a time: logits and all intermediate results in an observed context (see `observe`), and then logits in an ordinary
one, short and long. Chains, trees where the context takes them, and slots sharing a pass where it has several; and what
follows rejected drafts, where a recurrent state is taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from localspec.errors import Cancelled
from localspec.llama.bench import Bench
from localspec.llama.model import Model
from localspec.llama.parameters import most_nodes
from localspec.llama.probe import Probe
from localspec.llama.settings import ContextSettings

Progress = Callable[[float], None]
"""Share done, 0 to 1; may raise to give up."""

WIDEST = 8
"""Widths up to this are probed unless asked otherwise."""
_LONGEST_MEASURED = 8192  # all contexts that are compared are in memory at once
_MEASURED_SEED = 32  # tokens that are prefilled for a measurement: what cells hold costs nothing


def probe_lengths(n_ctx: int, reach: int = 16) -> list[int]:
    """History lengths to probe: across the steps at 256, 512 and 1,024 cells, and near the end."""
    wanted = (250, 508, 1020, n_ctx - reach - 2)
    return sorted({length for length in wanted if 8 < length <= n_ctx - reach - 2})


def cost_lengths(n_ctx: int) -> list[int]:
    """History lengths to time passes at: short, medium and long use of the context."""
    return sorted({max(9, n_ctx * share // 32) for share in (1, 12, 28)})


@dataclass(slots=True)
class Clock:
    """A time budget."""

    seconds: float
    started: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds; negative when it is used up."""
        return self.started + self.seconds - time.monotonic()

    def over(self) -> bool:
        """Whether it is used up."""
        return self.left() < 0


def probe(
    model: Model,
    settings: ContextSettings,
    *,
    widest: int = WIDEST,
    budget: float = 60.0,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Probe:
    """Costs and exact widths of one configuration; nothing is stored.

    Args:
        model: the target.
        settings: what the context in use will have.
        widest: widths 2 to this are examined.
        budget: seconds; when it runs out before the examination is complete, `exact` is None.
        progress: see `Progress`.
        cancel: says whether to stop.

    Raises:
        Cancelled: `cancel` said so.
        ModelError: llama.cpp refuses the settings.
    """
    steps = _Steps(progress, cancel)
    found = measure([(model, settings)], widest=widest, budget=budget / 3, progress=steps.part(0.0, 0.4))[0]
    return examine(model, settings, found, widest=widest, budget=budget * 2 / 3, progress=steps.part(0.4, 1.0))


def measure(
    configurations: Sequence[tuple[Model, ContextSettings]],
    *,
    widest: int = WIDEST,
    budget: float = 40.0,
    rounds: int = 7,
    progress: Progress | None = None,
) -> list[Probe]:
    """Costs of passes, turn and turn about between configurations, so that noise hits all of them alike.

    At least one round is always run; then more until `rounds` or the budget is used up. What counts is the lower
    quartile: other programs only ever make a pass slower. Models that neither trim nor tile are measured at the
    shortest length only.
    """
    clock = Clock(budget)
    shorter = [
        (model, replace(settings, n_ctx=min(settings.n_ctx, _LONGEST_MEASURED))) for model, settings in configurations
    ]
    benches = [Bench(model, settings, observed=False, seed_tokens=_MEASURED_SEED) for model, settings in shorter]
    try:
        times: list[dict[tuple[int, int], list[float]]] = [{} for _ in benches]
        lengths = [length for length in cost_lengths(shorter[0][1].n_ctx) if benches[0].reach(length) >= widest]
        if not all(bench.context.can_trim or bench.tiles for bench in benches):
            lengths = lengths[:1]  # where every token has to be read, the others could take minutes
        for turn in range(rounds):
            for index, length in enumerate(lengths):
                for bench, taken in zip(benches, times, strict=True):
                    bench.seconds(length, 1)  # warm: the first pass at a length builds its graph
                    for width in range(1, widest + 1):
                        taken.setdefault((length, width), []).append(bench.seconds(length, width))
                if progress is not None:
                    progress((turn + (index + 1) / len(lengths)) / rounds)
            if clock.over():
                break
        return [
            Probe(_typical(taken), 1.0 / bench.prefill_seconds) for bench, taken in zip(benches, times, strict=True)
        ]
    finally:
        for bench in benches:
            bench.close()


def examine(
    model: Model,
    settings: ContextSettings,
    known: Probe,
    *,
    widest: int = WIDEST,
    budget: float = 80.0,
    progress: Progress | None = None,
) -> Probe:
    """`known` with exact widths; with one more start that `gave_up` if the budget runs out first."""
    rows = max(widest + 1, 8)
    clock = Clock(budget)
    lengths = _telling_first(probe_lengths(settings.n_ctx, rows))
    steps = _Steps(progress, None)
    passed: dict[int, set[int]] = {}
    # without a length to try nothing is known about any width
    allowed = set(range(2, 1 + min(widest, 1 + most_nodes(model, settings)))) if lengths else set()
    state = b""
    for phase, observed in enumerate((True, False)):  # what logits hide shows first
        part = steps.part(phase / 2, (phase + 1) / 2)
        here = lengths if observed else lengths[:2]  # both ends
        with closing(Bench(model, settings, observed, 1 + phase, state)) as bench:
            state = bench.state
            for index, length in enumerate(here if allowed else []):
                try:
                    bench.reference(length, rows, clock.over)
                except Cancelled:
                    return replace(known, gave_up=known.gave_up + 1)
                for width in sorted(allowed):
                    if clock.over():
                        return replace(known, gave_up=known.gave_up + 1)
                    if not _equal(bench, length, width, settings, lengths[0]):
                        allowed.discard(width)
                passed[length] = allowed & passed.get(length, allowed)
                part((index + 1) / len(here))
    exact = {1}
    while max(exact) + 1 in allowed:
        exact.add(max(exact) + 1)
    return known.with_exact({length: tuple(sorted(widths)) for length, widths in passed.items()}, frozenset(exact))


def _telling_first(lengths: Sequence[int]) -> list[int]:
    """The shortest, then from the longest down: where attention changes its path, most widths fail at once."""
    return [*lengths[:1], *reversed(lengths[1:])]


def _equal(bench: Bench, length: int, width: int, settings: ContextSettings, shortest: int) -> bool:
    """Whether a pass of `width` rows gives the bits of one-row passes, filled in each of the ways drafters fill it.

    These are a chain; where the context takes trees, two chains side by side or in turn (suffix decoding, token
    recycling) and a chain with a leaf beside each node (draft model); and in a context of several slots, equal chains
    of several slots. Where a rejected draft cannot just be trimmed, the rows behind it count, too.
    """
    if not bench.chain_equals(length, width):
        return False
    if not bench.context.can_trim and not bench.rollback_equals(length, width):
        return False
    if settings.max_leaves > 1 and width > 2:
        if not bench.tree_equals(length, width):
            return False
        if not bench.comb_equals(length, width):
            return False
    for slots in range(2, min(settings.n_slots, width) + 1):
        if width % slots == 0:
            if not bench.slots_equal(length, slots, width // slots):
                return False
            if length != shortest and not bench.slots_equal(length, slots, width // slots, shortest):
                return False
    return True


def _typical(taken: Mapping[tuple[int, int], Sequence[float]]) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {}
    for (length, width), times in taken.items():
        found.setdefault(length, {})[width] = sorted(times)[len(times) // 4]
    return found


class _Steps:
    """Splits a progress report into parts, and turns `cancel` into an exception at every step."""

    def __init__(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        self._progress, self._cancel = progress, cancel

    def part(self, start: float, end: float) -> Progress:
        def report(share: float) -> None:
            if self._cancel is not None and self._cancel():
                raise Cancelled("Stopped while probing.")
            if self._progress is not None:
                self._progress(start + (end - start) * share)

        return report
