"""Chooses how the target runs: whose kernels, number formats of the cache, flash attention (DESIGN section 5C).

Cost is what a token takes with the best draft length the configuration allows (`probe.token_seconds`): one that is
exact only for narrow passes pays for that. What was decided is kept (see `decision`): later starts do the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec.errors import ModelError, UsageError
from localspec.llama import decision as decisions
from localspec.llama import probe as probes
from localspec.llama import wide
from localspec.llama import widths as probing
from localspec.llama.configuration import ALL_KERNELS, CACHES, DEFAULT_CACHE, CacheFormat, Configuration, Kernels
from localspec.llama.context import Context
from localspec.llama.decision import Decision
from localspec.llama.model import Model
from localspec.llama.parameters import most_nodes
from localspec.llama.probe import Probe
from localspec.llama.settings import ContextSettings
from localspec.llama.states import NO_TAP, Tap
from localspec.llama.survey import Budget, Progress, Survey, Weights

Mode = Literal["auto", "strict", "off"]

_TOLERANCE = 1.10
_DRAFT_SECONDS = 3.0
_WIDER_STARTS = 2
"""That may run out of time examining wider passes: one with what a decision left of the budget, one with all of it."""


@dataclass(slots=True)
class Chosen:
    """The target, ready to run."""

    model: Model
    context: Context
    probe: Probe
    exact: bool
    """Whether every pass of an exact width has the bits of plain decoding; `context.exact_widths` are those widths."""
    configuration: Configuration
    description: str
    """The configuration in words, and why."""

    def close(self) -> None:
        self.context.close()
        self.model.close()


def choose(
    path: str | Path,
    settings: ContextSettings,
    *,
    exact: Mode = "auto",
    kernels: Sequence[Kernels] = ALL_KERNELS,
    caches: Sequence[CacheFormat] = CACHES,
    widest: int = probing.WIDEST,
    gpu_layers: int = 0,
    device: str | None = None,
    cache_dir: Path | None = None,
    budget: float = 30.0,
    progress: Progress | None = None,
    tap: Tap = NO_TAP,
) -> Chosen:
    """Loads a target in the configuration that `exact` asks for, measuring what is not in `cache_dir` yet.

    Args:
        path: a GGUF file.
        settings: of the context; its cache types and flash attention are what is chosen here.
        exact: "strict" = the cheapest exact configuration that can draft (exact for more than single rows), or one
            that cannot if none can; "auto" = the cheapest exact one that can draft if it costs at most 10 % more
            than the fastest of all, else the fastest; "off" = the fastest of llama.cpp's defaults and the wide
            kernels, nothing is examined.
        kernels: those to choose from. "wide" counts where the library can be used and the model is on the CPU; alone
            it is what is used (for tests and benchmarks).
        caches: those to choose from; "wide" knows the default one only, and does not count without it.
        widest: widest pass the engine will ask for (1 + most draft nodes, over all slots). Like slots and trees it
            decides which widths are examined, not which configuration is chosen.
        gpu_layers: as in `Model.load`.
        device: as in `Model.load`.
        cache_dir: folder of decisions and probe results; None = measure anew and keep nothing.
        budget: seconds the measurements may take, roughly, loading excepted; "strict" takes 20 times as long if it
            must. What could not be examined in time counts as inexact for now: the next start looks again, three
            starts in all, of which one on a busy machine counts a quarter.
        progress: see `Progress`.
        tap: hidden states that the context hands out; they change no bit, so nothing is chosen by them.

    Raises:
        ModelError: "strict", and no configuration is exact here; or what `Model.load` and `Context` raise.
        UsageError: `exact` is none of the three, or nothing is left to choose from.
    """
    if exact not in ("auto", "strict", "off"):
        raise UsageError(f"exact is {exact!r}; it must be auto, strict or off.")
    if not kernels or not set(kernels) <= set(ALL_KERNELS):
        raise UsageError(f"kernels is {list(kernels)}; it must hold some of {', '.join(ALL_KERNELS)}.")
    weights = Weights(Path(path), gpu_layers, device, nextn=tap.nextn)
    if "wide" in kernels and DEFAULT_CACHE not in caches:
        kernels = [name for name in kernels if name != "wide"]
    if len(kernels) > 1 and "wide" in kernels and (gpu_layers != 0 or not wide.available()):
        kernels = [name for name in kernels if name != "wide"]
    if not kernels or not caches:
        raise UsageError("No configuration has these kernels with such a cache; wide kernels keep an f16 cache.")
    chooser = _Chooser(weights, settings, exact, kernels, caches, widest, cache_dir, budget, progress)
    try:
        return chooser.finish(chooser.decide(), tap)
    finally:
        chooser.survey.close()


def load_draft_model(
    path: str | Path,
    settings: ContextSettings,
    *,
    may_be_wide: bool,
    gpu_layers: int = 0,
    device: str | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Model:
    """Loads a draft model: with wide kernels if they may be and its one-row passes are no slower for it.

    Most of its passes have one row, and nobody relies on their bits. What was measured once is remembered.

    Args:
        path: a GGUF file.
        settings: of its context.
        may_be_wide: whether the target runs wide; otherwise llama.cpp's kernels serve both.
        gpu_layers: as in `Model.load`.
        device: as in `Model.load`.
        cache_dir: as in `choose`.
        progress: see `Progress`.

    Raises:
        ModelError: as `Model.load`.
    """
    weights = Weights(Path(path), gpu_layers, device, "draft model")
    survey = Survey(weights, settings, 1, cache_dir, Budget(_DRAFT_SECONDS, _DRAFT_SECONDS), progress)
    ours, default = Configuration("wide"), Configuration("repacked")
    if not may_be_wide or gpu_layers != 0 or not wide.available():
        return survey.take(default.kernels)
    try:
        kernels: tuple[Kernels, ...] = (ours.kernels, default.kernels)
        key = decisions.decision_key(weights.path, settings, "draft", kernels, gpu_layers, device)
        decision = decisions.load(cache_dir, key)
        if decision is None or not decision.stands:
            choices = survey.usable([default, ours])
            survey.measure(choices)
            best = min(choices, key=survey.unrestricted)  # of equals the first
            found = Decision(best, False, "one-row passes", survey.known(best) or Probe())
            decision = found.counted(decision)
            decisions.store(cache_dir, key, decision)
        return survey.take(decision.configuration.kernels)
    finally:
        survey.close()


class _Chooser:
    """One choice."""

    def __init__(
        self,
        weights: Weights,
        settings: ContextSettings,
        mode: Mode,
        kernels: Sequence[Kernels],
        caches: Sequence[CacheFormat],
        widest: int,
        directory: Path | None,
        budget: float,
        progress: Progress | None,
    ) -> None:
        self._weights, self._shape, self._shape_widest = weights, settings, max(probing.WIDEST, widest)
        # What is chosen must not depend on slots, trees or draft lengths: they may not change a text.
        self._settings, self._widest = replace(settings, n_slots=1, max_leaves=1), probing.WIDEST
        self._mode, self._strict, self._kernels, self._directory = mode, mode == "strict", kernels, directory
        self._caches = caches
        self._budget = Budget(budget / 4, 20 * budget if self._strict else budget)
        cache = DEFAULT_CACHE if DEFAULT_CACHE in caches else caches[0]
        self._default = Configuration(next((name for name in kernels if name != "wide"), "wide"), cache)
        """What llama.cpp does by itself, or what comes nearest."""
        self._ours_or_theirs = "wide" in kernels and self._default.kernels != "wide"
        self.survey = Survey(weights, self._settings, self._widest, directory, self._budget, progress)

    # -- deciding -----------------------------------------------------------------------------------------------

    def decide(self) -> Decision:
        """What was decided at an earlier start, or else now."""
        if self._mode == "off" and not self._ours_or_theirs:
            return self._decision(self._default, False, "exactness is off")
        weights = self._weights
        key = decisions.decision_key(
            weights.path, self._settings, self._mode, self._kernels, weights.gpu_layers, weights.device, self._caches
        )
        decision = decisions.load(self._directory, key)
        if decision is None or not decision.stands:
            measured = self._fastest_default() if self._mode == "off" else self._measured_decision()
            measured = measured.counted(decision, self._mode == "auto" and self.survey.unfinished)
            decision = decisions.load(self._directory, key)
            if decision is None or not decision.stands:  # else another process was faster
                decision = measured
                decisions.store(self._directory, key, decision)
        return decision

    def _fastest_default(self) -> Decision:
        choices = self.survey.usable([Configuration("wide"), self._default])
        self.survey.measure(choices)
        return self._decision(min(choices, key=self.survey.unrestricted), False, "exactness is off")

    def _measured_decision(self) -> Decision:
        survey = self.survey
        if not most_nodes(survey.model(self._default.kernels), self._settings):
            why = "its state cannot be trimmed, so nothing is drafted"
            return Decision(self._default, True, why, Probe(exact=frozenset({1})))
        if self._wide_wins():
            return self._decision(Configuration("wide"), True, "costs less than llama.cpp's default")
        # without time to examine more, measuring more would only make the start slower
        late = self._ours_or_theirs and not self._strict and not survey.has_time()
        choices = survey.usable([Configuration("wide"), self._default] if late else self._candidates())
        survey.measure(choices)
        fastest = min(choices, key=survey.unrestricted)
        best = self._cheapest_exact(choices)
        if self._repacking_matters(best):
            best = self._with_plain(best, fastest if best is None else best)
        if best is None:
            if self._strict:
                raise ModelError(
                    f"no configuration of {self._weights.path.name} could be shown to be exact on this machine.",
                    "Use --exact auto, or give the probe more time.",
                )
            found = "no exact configuration was found"
            return self._decision(fastest, False, f"{found} in time" if survey.unfinished else found)
        extra = survey.cost(best) / survey.unrestricted(fastest) - 1 if survey.measured(fastest) else 0.0
        if self._strict or (survey.drafts(best) and extra <= _TOLERANCE - 1):
            return self._decision(best, True, f"costs {max(0.0, extra):.0%} more than the fastest")
        if not survey.drafts(best):
            return self._decision(fastest, False, "no exact configuration that can draft was found")
        return self._decision(fastest, False, f"the cheapest exact one costs {extra:.0%} more")

    def _decision(self, configuration: Configuration, exact: bool, why: str) -> Decision:
        return Decision(configuration, exact, why, self.survey.known(configuration) or Probe())

    def _candidates(self) -> list[Configuration]:
        """Wide kernels with llama.cpp's default cache, and llama.cpp's kernels with every cache there may be."""
        ours = [Configuration("wide")] if "wide" in self._kernels else []
        base = self._default.kernels
        return ours if base == "wide" else ours + [Configuration(base, cache) for cache in self._caches]

    def _wide_wins(self) -> bool:
        """Whether wide kernels are exact and, with the widths that are, no dearer than llama.cpp's default with all.

        Asked first, as the answer mostly is yes; other caches, slower or inexact, then need no seconds of the budget.
        """
        ours, survey = Configuration("wide"), self.survey
        if not self._ours_or_theirs:
            return False
        choices = survey.usable([ours, self._default])
        if len(choices) < 2:
            return False
        survey.examine(ours)
        if not survey.drafts(ours):
            return False
        survey.measure(choices)
        return survey.measured(ours) and survey.cost(ours) <= survey.unrestricted(self._default)

    def _cheapest_exact(
        self, choices: Sequence[Configuration], best: Configuration | None = None
    ) -> Configuration | None:
        """Examines from the cheapest up, until no other could be cheaper even with every width.

        Wide kernels that would be cheap enough come first, as they most likely are exact. One that is exact for single
        rows only comes last: nothing could be drafted with it.
        """
        survey, plain = self.survey, None
        limit = _TOLERANCE * min(map(survey.unrestricted, choices))

        def order(choice: Configuration) -> tuple[bool, float]:
            return choice.kernels != "wide" or survey.unrestricted(choice) > limit, survey.unrestricted(choice)

        for choice in sorted(choices, key=order):
            drafts = best is not None and survey.drafts(best)
            if best is not None and drafts and survey.unrestricted(choice) >= survey.cost(best):
                continue
            survey.examine(choice)
            if survey.drafts(choice) and (best is None or not drafts or survey.cost(choice) < survey.cost(best)):
                best = choice
            elif survey.examined(choice) and plain is None:
                plain = choice
        return best or plain

    def _repacking_matters(self, best: Configuration | None) -> bool:
        """Whether plain weights might allow widths that repacked ones do not (CPU only)."""
        if self._weights.gpu_layers != 0 or not {"repacked", "plain"} <= set(self._kernels):
            return False
        widths = None if best is None else self._decision(best, True, "").probe.exact
        return widths is None or len(widths) < min(self._widest, 4)

    def _with_plain(self, best: Configuration | None, like: Configuration) -> Configuration | None:
        """`best`, or plain weights with the cache of `like` if exact and better; they load only if they can be."""
        base, plain, survey = Configuration("repacked", like.cache), Configuration("plain", like.cache), self.survey
        known = survey.known(plain) or Probe()
        if (known.exact is not None or survey.unexamined(known)) and survey.measure_beside(plain, base):
            return self._cheapest_exact([plain], best)
        return best

    # -- loading what was decided -------------------------------------------------------------------------------

    def finish(self, decision: Decision, tap: Tap = NO_TAP) -> Chosen:
        """Loads it; the rest of the survey may be closed."""
        configuration, exact, why = decision.configuration, decision.exact, decision.why
        model = self.survey.take(configuration.kernels)
        try:
            context = Context(model, configuration.apply(self._shape), tap=tap)
            if exact:
                context.exact_widths = self._exact_in_shape(model, configuration, decision.probe)
                if context.exact_widths is None:
                    exact, why = False, "wide passes, slots and trees could not be examined in time"
        except BaseException:
            model.close()
            raise
        words = f"{'exact' if exact else 'inexact'}: {configuration} ({why})"
        return Chosen(model, context, decision.probe, exact, configuration, words)

    def _exact_in_shape(self, model: Model, configuration: Configuration, found: Probe) -> frozenset[int] | None:
        """Exact widths with the slots, trees and draft lengths really asked for; None = could not be examined.

        Kept per mode: what strict finds out later must not change what auto does.
        """
        nodes = most_nodes(model, self._shape)
        if not nodes:  # whatever was examined in the shape that decides
            return frozenset({1})
        widest = max(self._widest, min(self._shape_widest, 1 + nodes))
        if (self._shape, widest) == (self._settings, self._widest):
            return found.exact
        settings = configuration.apply(self._shape)
        key = f"{self.survey.key(model.kernels, settings, widest)}-{self._mode}"
        only_wider = self._shape == self._settings  # than was examined: what copies use
        known = probes.load(self._directory, key) or replace(found, by_length=None, exact=None, gave_up=0)
        starts = _WIDER_STARTS if only_wider else math.inf if self._strict else decisions.STARTS
        budget = self.survey.time_left if only_wider else self._budget.all
        if known.exact is None and known.gave_up < starts and budget > 0.0:
            before = known.gave_up
            known = probing.examine(
                model,
                settings,
                known,
                widest=widest,
                budget=budget,
                progress=lambda share: self.survey.report("checking bits (slots, trees, wide passes)", share),
            )
            if known.exact is None:
                known = replace(known, gave_up=before + decisions.start_weight())
            probes.store(self._directory, key, known)
        if known.exact is None:
            if only_wider:
                return found.exact
            return frozenset({1}) if self._strict else None
        if found.exact is not None and max(found.exact) < self._widest:
            return known.exact & found.exact  # at more lengths than fit with so many rows
        return known.exact
