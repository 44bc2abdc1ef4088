"""Chooses how the target runs: number formats of the cache, flash attention, repacking (DESIGN section 5C).

Cost is what a token takes with the best draft length the configuration allows, if a guess were right `_HIT_RATE` of
the time: a configuration that is exact only for narrow passes pays for that. Costs are compared with each other
within one measurement, turn and turn about. What was decided is kept (see `decision`): later starts do the same.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec.errors import ModelError, UsageError
from localspec.llama import decision as decisions
from localspec.llama import probe as probes
from localspec.llama import widths as probing
from localspec.llama.context import Context
from localspec.llama.decision import Decision
from localspec.llama.model import Model
from localspec.llama.probe import Probe
from localspec.llama.settings import CacheType, ContextSettings

Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1); may raise to give up."""

_HIT_RATE = 0.7
_TOLERANCE = 1.10


@dataclass(slots=True)
class Chosen:
    """The target, ready to run."""

    model: Model
    context: Context
    probe: Probe
    exact: bool
    """Whether every pass of an exact width has the bits of plain decoding; `context.exact_widths` are those widths."""
    description: str
    """The configuration in words, and why."""

    def close(self) -> None:
        self.context.close()
        self.model.close()


@dataclass(frozen=True, slots=True)
class _Cache:
    """How keys and values are kept."""

    name: str
    type_k: CacheType
    type_v: CacheType
    flash_attention: bool | Literal["auto"]

    def apply(self, settings: ContextSettings) -> ContextSettings:
        return replace(settings, type_k=self.type_k, type_v=self.type_v, flash_attention=self.flash_attention)


_DEFAULT = _Cache("F16 cache", "f16", "f16", "auto")
_CACHES = (
    _DEFAULT,
    _Cache("F16 keys, BF16 values", "f16", "bf16", True),
    _Cache("Q8_0 cache", "q8_0", "q8_0", True),
    _Cache("F16 cache, no flash attention", "f16", "f16", False),
)
_BY_NAME = {cache.name: cache for cache in _CACHES}


def choose(
    path: str | Path,
    settings: ContextSettings,
    *,
    exact: Literal["auto", "strict", "off"] = "auto",
    widest: int = probing.WIDEST,
    gpu_layers: int = 0,
    device: str | None = None,
    cache_dir: Path | None = None,
    budget: float = 30.0,
    progress: Progress | None = None,
) -> Chosen:
    """Loads a target in the configuration that `exact` asks for, measuring what is not in `cache_dir` yet.

    Args:
        path: a GGUF file.
        settings: of the context; its cache types and flash attention are what is chosen here.
        exact: "strict" = the cheapest exact configuration that can draft (exact for more than single rows), or one
            that cannot if none can; "auto" = the cheapest exact one that can draft if it costs at most 10 % more
            than the fastest of all, else the fastest; "off" = llama.cpp's defaults, nothing is examined.
        widest: widest pass the engine will ask for (1 + most draft nodes, over all slots). Like slots and trees it
            decides which widths are examined, not which configuration is chosen.
        gpu_layers: as in `Model.load`.
        device: as in `Model.load`.
        cache_dir: folder of decisions and probe results; None = measure anew and keep nothing.
        budget: seconds the measurements may take, roughly, loading excepted; "strict" takes 20 times as long if it
            must. What could not be examined in time counts as inexact and is not tried again under "auto".
        progress: see `Progress`.

    Raises:
        ModelError: "strict", and no configuration is exact here; or what `Model.load` and `Context` raise.
        UsageError: `exact` is none of the three.
    """
    if exact not in ("auto", "strict", "off"):
        raise UsageError(f"exact is {exact!r}; it must be auto, strict or off.")
    chooser = _Chooser(Path(path), settings, exact, widest, gpu_layers, device, cache_dir, budget, progress)
    try:
        return chooser.finish(chooser.decide())
    except BaseException:
        chooser.close()
        raise


class _Chooser:
    """Holds at most one model per repacking while configurations are compared."""

    def __init__(
        self,
        path: Path,
        settings: ContextSettings,
        mode: Literal["auto", "strict", "off"],
        widest: int,
        gpu_layers: int,
        device: str | None,
        cache_dir: Path | None,
        budget: float,
        progress: Progress | None,
    ) -> None:
        self._path, self._shape, self._shape_widest = path, settings, max(probing.WIDEST, widest)
        # What is chosen must not depend on slots, trees or draft lengths: they may not change a text.
        self._settings, self._widest = replace(settings, n_slots=1, max_leaves=1), probing.WIDEST
        self._gpu_layers, self._device = gpu_layers, device
        self._directory, self._progress = cache_dir, progress
        self._mode, self._strict = mode, mode == "strict"
        self._measuring = budget / 4
        self._budget = 20 * budget if self._strict else budget
        self._spent = 0.0
        """Seconds of measuring and examining so far: a slow disk or what is known already takes nothing away."""
        self._models: dict[bool, Model] = {}
        self._probes: dict[tuple[bool, _Cache], Probe] = {}

    def decide(self) -> Decision:
        """What was decided at an earlier start, or else now."""
        if self._mode == "off":
            return Decision(True, _DEFAULT.name, False, "exactness is off", self._known(True, _DEFAULT) or Probe())
        key = decisions.decision_key(self._path, self._settings, self._mode, self._gpu_layers, self._device)
        decision = self._decided(key)
        if decision is None:
            measured = self._measured_decision()
            decision = self._decided(key) or measured  # another process's, if it was faster
            if decision is measured:
                decisions.store(self._directory, key, decision)
        return decision

    def _decided(self, key: str) -> Decision | None:
        decision = decisions.load(self._directory, key)
        return decision if decision is not None and decision.cache in _BY_NAME else None

    def _measured_decision(self) -> Decision:
        if not self._model(True).can_trim:
            why = "its state cannot be trimmed, so nothing is drafted"
            return Decision(True, _DEFAULT.name, True, why, Probe(exact=frozenset({1})))
        choices = [(True, cache) for cache in self._usable_caches()]
        self._measure(choices)
        fastest = min(choices, key=self._unrestricted)
        best = self._cheapest_exact(choices)
        if self._repacking_matters(best):
            best = self._with_plain(best, fastest[1] if best is None else best[1])
        if best is None:
            if self._strict:
                raise ModelError(
                    f"no configuration of {self._path.name} could be shown to be exact on this machine.",
                    "Use --exact auto, or give the probe more time.",
                )
            return self._decision(fastest, False, "no exact configuration was found")
        extra = self._cost(best) / self._unrestricted(fastest) - 1 if self._probes[fastest].seconds else 0.0
        if self._strict or (self._drafts(best) and extra <= _TOLERANCE - 1):
            return self._decision(best, True, f"costs {max(0.0, extra):.0%} more than the fastest")
        if not self._drafts(best):
            return self._decision(fastest, False, "no exact configuration that can draft was found")
        return self._decision(fastest, False, f"the cheapest exact one costs {extra:.0%} more")

    def _decision(self, choice: tuple[bool, _Cache], exact: bool, why: str) -> Decision:
        return Decision(choice[0], choice[1].name, exact, why, self._probes[choice])

    def finish(self, decision: Decision) -> Chosen:
        """Loads what was decided and lets go of the rest."""
        repack, cache, exact, why = decision.repack, _BY_NAME[decision.cache], decision.exact, decision.why
        for other in [key for key in self._models if key != repack]:
            self._models.pop(other).close()
        model = self._model(repack)
        context = Context(model, cache.apply(self._shape))
        if exact:
            context.exact_widths = self._exact_in_shape(model, cache, decision.probe)
            if context.exact_widths is None:
                exact, why = False, "wide passes, slots and trees could not be examined in time"
        self._models.clear()  # it belongs to the caller now
        words = f"{cache.name}, {'repacked' if repack else 'plain'} weights"
        return Chosen(model, context, decision.probe, exact, f"{'exact' if exact else 'inexact'}: {words} ({why})")

    def _exact_in_shape(self, model: Model, cache: _Cache, found: Probe) -> frozenset[int] | None:
        """Exact widths with the slots, trees and draft lengths really asked for; None = could not be examined.

        Kept per mode: what strict finds out later must not change what auto does.
        """
        if (self._shape, self._shape_widest) == (self._settings, self._widest) or not model.can_trim:
            return found.exact
        settings = cache.apply(self._shape)
        key = self._file(model.repack, settings, self._shape_widest)
        known = probes.load(self._directory, f"{key}-{self._mode}")
        if known is None or (known.exact is None and (self._strict or not known.gave_up)):
            known = probing.examine(
                model,
                settings,
                replace(found, by_length=None, exact=None, gave_up=False),
                widest=self._shape_widest,
                budget=self._budget,
                progress=lambda share: self._report("checking bits (slots, trees, wide passes)", share),
            )
            probes.store(self._directory, f"{key}-{self._mode}", known)
        if known.exact is None:
            return frozenset({1}) if self._strict else None
        if found.exact is not None and max(found.exact) < self._widest:
            return known.exact & found.exact  # at more lengths than fit with so many rows
        return known.exact

    def close(self) -> None:
        for model in self._models.values():
            model.close()
        self._models.clear()

    # -- what is known, measured or examined --------------------------------------------------------------------

    def _model(self, repack: bool) -> Model:
        if repack not in self._models:
            gpu_layers, device = self._gpu_layers, self._device
            self._models[repack] = Model.load(
                self._path, gpu_layers=gpu_layers, device=device, repack=repack, progress=self._loading
            )
        return self._models[repack]

    def _loading(self, share: float) -> bool:
        self._report("loading the target", share)
        return True

    def _report(self, what: str, share: float) -> None:
        if self._progress is not None:
            self._progress(what, share)

    def _usable_caches(self) -> list[_Cache]:
        """The default, and what llama.cpp makes a context of for this model."""
        usable = []
        for cache in _CACHES:
            try:
                Context(self._model(True), replace(cache.apply(self._settings), n_ctx=256, n_slots=1)).close()
            except ModelError:
                if cache is _DEFAULT:
                    raise
            else:
                usable.append(cache)
        return usable

    def _file(self, repack: bool, settings: ContextSettings, widest: int) -> str:
        return probes.cache_key(
            self._path, settings, widest, repack=repack, gpu_layers=self._gpu_layers, device=self._device
        )

    def _known(self, repack: bool, cache: _Cache) -> Probe | None:
        return probes.load(self._directory, self._file(repack, cache.apply(self._settings), self._widest))

    def _measure(self, choices: list[tuple[bool, _Cache]]) -> None:
        """Costs of all `choices`, from disk if all are there (costs of different hours do not compare)."""
        stored = [self._known(*choice) for choice in choices]
        if not all(probe is not None and probe.seconds for probe in stored):
            stored = [
                probe if old is None else replace(old, seconds=probe.seconds, prefill_rate=probe.prefill_rate)
                for probe, old in zip(self._measured(choices), stored, strict=True)
            ]
        for choice, probe in zip(choices, stored, strict=True):
            if probe is not None:
                self._keep(choice, probe)

    def _measured(self, choices: list[tuple[bool, _Cache]]) -> list[Probe]:
        configurations = [(self._model(repack), cache.apply(self._settings)) for repack, cache in choices]
        with self._spending():
            return probing.measure(
                configurations,
                widest=self._widest,
                budget=self._measuring,
                progress=lambda share: self._report("measuring", share),
            )

    def _measure_plain(self, cache: _Cache) -> bool:
        """Costs of plain weights, on the scale of the first measurement; False = could not be compared.

        They are measured anew beside repacked ones, whose costs stay what they were.
        """
        before = self._unrestricted((True, cache))
        repacked, plain = self._measured([(True, cache), (False, cache)])
        if not (repacked.seconds and math.isfinite(before)):
            return False
        scale = before / token_seconds(repacked, frozenset(range(1, self._widest + 1)))
        seconds = {n: {width: scale * s for width, s in row.items()} for n, row in plain.seconds.items()}
        known = self._known(False, cache) or Probe()
        self._keep((False, cache), replace(known, seconds=seconds, prefill_rate=plain.prefill_rate))
        return True

    def _keep(self, choice: tuple[bool, _Cache], probe: Probe) -> None:
        self._probes[choice] = probe
        repack, cache = choice
        if not repack:
            probe = replace(probe, seconds={}, prefill_rate=0.0)  # only compares with this start's costs
        probes.store(self._directory, self._file(repack, cache.apply(self._settings), self._widest), probe)

    @contextlib.contextmanager
    def _spending(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - start

    def _unexamined(self, known: Probe) -> bool:
        """Whether there is something left to find out, and time for it."""
        return known.exact is None and (self._strict or not known.gave_up) and self._spent < self._budget

    def _examine(self, choice: tuple[bool, _Cache]) -> None:
        known = self._probes[choice]
        if self._unexamined(known):
            repack, cache = choice
            model = self._model(repack)
            with self._spending():
                known = probing.examine(
                    model,
                    cache.apply(self._settings),
                    known,
                    widest=self._widest,
                    budget=self._budget - self._spent,
                    progress=lambda share: self._report(f"checking bits ({cache.name})", share),
                )
            self._keep(choice, known)

    # -- comparing ------------------------------------------------------------------------------------------------

    def _cost(self, choice: tuple[bool, _Cache]) -> float:
        return token_seconds(self._probes[choice], self._probes[choice].exact or frozenset({1}))

    def _unrestricted(self, choice: tuple[bool, _Cache]) -> float:
        return token_seconds(self._probes[choice], frozenset(range(1, self._widest + 1)))

    def _cheapest_exact(
        self, choices: list[tuple[bool, _Cache]], best: tuple[bool, _Cache] | None = None
    ) -> tuple[bool, _Cache] | None:
        """Examines from the cheapest up, until no other could be cheaper even with every width.

        One that is exact for single rows only comes last: nothing could be drafted with it.
        """
        plain = None
        for choice in sorted(choices, key=self._unrestricted):
            drafts = best is not None and self._drafts(best)
            if best is not None and drafts and self._unrestricted(choice) >= self._cost(best):
                break  # nor any after it
            self._examine(choice)
            if self._drafts(choice) and (best is None or not drafts or self._cost(choice) < self._cost(best)):
                best = choice
            elif self._probes[choice].exact is not None and plain is None:
                plain = choice
        return best or plain

    def _drafts(self, choice: tuple[bool, _Cache]) -> bool:
        return len(self._probes[choice].exact or ()) > 1

    def _repacking_matters(self, best: tuple[bool, _Cache] | None) -> bool:
        """Whether plain weights might allow widths that repacked ones do not (CPU only)."""
        if self._gpu_layers != 0:
            return False
        widths = self._probes[best].exact if best is not None else None
        return widths is None or len(widths) < min(self._widest, 4)

    def _with_plain(self, best: tuple[bool, _Cache] | None, cache: _Cache) -> tuple[bool, _Cache] | None:
        """`best`, or plain weights with `cache` if these are exact and better; they are loaded only if it can be."""
        known = self._known(False, cache) or Probe()
        if (known.exact is not None or self._unexamined(known)) and self._measure_plain(cache):
            return self._cheapest_exact([(False, cache)], best)
        return best


def token_seconds(probe: Probe, widths: frozenset[int]) -> float:
    """Mean seconds per token over the probed lengths, each with the best of `widths`, drafting for free."""
    per_length = []
    for row in probe.seconds.values():
        tokens = {width: (1 - _HIT_RATE**width) / (1 - _HIT_RATE) for width in row}
        per_length.append(min(row[width] / tokens[width] for width in row if width in widths))
    return sum(per_length) / len(per_length) if per_length else float("inf")
