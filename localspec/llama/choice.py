"""Chooses how the target runs: number formats of the cache, flash attention, repacking (DESIGN section 5C).

Cost is what a token takes with the best draft length the configuration allows, if a guess were right `_HIT_RATE` of
the time: a configuration that is exact only for narrow passes pays for that. Costs are compared with each other
within one measurement, turn and turn about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec.errors import ModelError, UsageError
from localspec.llama import probe as probes
from localspec.llama import widths as probing
from localspec.llama.context import Context
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
        exact: "strict" = the cheapest exact configuration; "auto" = that one if it costs at most 10 % more than the
            fastest, else the fastest; "off" = llama.cpp's defaults, nothing is examined.
        widest: widest pass the engine will ask for (1 + most draft nodes, over all slots). Like slots and trees it
            decides which widths are examined, not which configuration is chosen.
        gpu_layers: as in `Model.load`.
        device: as in `Model.load`.
        cache_dir: folder of probe results; None = measure anew and keep nothing.
        budget: seconds the measurements may take, roughly; "strict" takes 20 times as long if it must. What could
            not be examined in time counts as inexact and is not tried again under "auto".
        progress: see `Progress`.

    Raises:
        ModelError: "strict", and no configuration is exact here; or what `Model.load` and `Context` raise.
        UsageError: `exact` is none of the three.
    """
    if exact not in ("auto", "strict", "off"):
        raise UsageError(f"exact is {exact!r}; it must be auto, strict or off.")
    chooser = _Chooser(Path(path), settings, widest, gpu_layers, device, cache_dir, budget, progress)
    try:
        if exact == "off":
            return chooser.finish(True, _DEFAULT, exact=False, why="exactness is off")
        return chooser.choose(strict=exact == "strict")
    except BaseException:
        chooser.close()
        raise


class _Chooser:
    """Holds at most one model per repacking while configurations are compared."""

    def __init__(
        self,
        path: Path,
        settings: ContextSettings,
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
        self._directory, self._budget, self._progress = cache_dir, budget, progress
        self._clock, self._strict = probing.Clock(budget), False
        self._models: dict[bool, Model] = {}
        self._probes: dict[tuple[bool, _Cache], Probe] = {}

    def choose(self, strict: bool) -> Chosen:
        self._strict = strict
        if strict:
            self._clock = probing.Clock(20 * self._budget)
        if not self._model(True).can_trim:
            self._probes[True, _DEFAULT] = Probe(exact=frozenset({1}))
            return self.finish(True, _DEFAULT, exact=True, why="its state cannot be trimmed, so nothing is drafted")
        caches = self._usable_caches(repack=True)
        self._measure([(True, cache) for cache in caches])
        fastest = min(((True, cache) for cache in caches), key=self._unrestricted)
        best = self._cheapest_exact([(True, cache) for cache in caches])
        if self._repacking_matters(best):
            cache = best[1] if best is not None else fastest[1]
            self._measure([(True, cache), (False, cache)])
            best = self._cheapest_exact([(False, cache)], best)
        if best is None:
            if strict:
                raise ModelError(
                    f"no configuration of {self._path.name} could be shown to be exact on this machine.",
                    "Use --exact auto, or give the probe more time.",
                )
            return self.finish(*fastest, exact=False, why="no exact configuration was found")
        extra = self._cost(best) / self._unrestricted(fastest) - 1
        if strict or extra <= _TOLERANCE - 1:
            return self.finish(*best, exact=True, why=f"costs {max(0.0, extra):.0%} more than the fastest")
        return self.finish(*fastest, exact=False, why=f"the cheapest exact one costs {extra:.0%} more")

    def finish(self, repack: bool, cache: _Cache, *, exact: bool, why: str) -> Chosen:
        """Loads what was chosen and lets go of the rest."""
        for other in [key for key in self._models if key != repack]:
            self._models.pop(other).close()
        model = self._model(repack)
        context = Context(model, cache.apply(self._shape))
        found = self._probes.get((repack, cache)) or self._known(repack, cache) or Probe()
        if exact:
            widths = self._exact_in_shape(model, cache, found)
            exact = widths is not None
            context.exact_widths = widths
        self._models.clear()  # it belongs to the caller now
        words = f"{cache.name}, {'repacked' if repack else 'plain'} weights"
        return Chosen(model, context, found, exact, f"{'exact' if exact else 'inexact'}: {words} ({why})")

    def _exact_in_shape(self, model: Model, cache: _Cache, found: Probe) -> frozenset[int] | None:
        """Exact widths with the slots, trees and draft lengths really asked for; None = could not be examined."""
        if (self._shape, self._shape_widest) == (self._settings, self._widest) or not model.can_trim:
            return found.exact
        settings = cache.apply(self._shape)
        key = probes.cache_key(model, settings, self._shape_widest)
        known = probes.load(self._directory, key) or replace(found, by_length=None, exact=None, gave_up=False)
        if known.exact is None and (self._strict or not known.gave_up):
            known = probing.examine(
                model,
                settings,
                known,
                widest=self._shape_widest,
                budget=self._clock.seconds,
                progress=lambda share: self._report("checking bits (slots, trees, wide passes)", share),
            )
            probes.store(self._directory, key, known)
        if known.exact is None and self._strict:
            return frozenset({1})
        return known.exact

    def close(self) -> None:
        for model in self._models.values():
            model.close()
        self._models.clear()

    # -- what is known, measured or examined --------------------------------------------------------------------

    def _model(self, repack: bool) -> Model:
        if repack not in self._models:
            self._models[repack] = Model.load(
                self._path,
                gpu_layers=self._gpu_layers,
                device=self._device,
                repack=repack,
                progress=self._loading,
            )
        return self._models[repack]

    def _loading(self, share: float) -> bool:
        self._report("loading the target", share)
        return True

    def _report(self, what: str, share: float) -> None:
        if self._progress is not None:
            self._progress(what, share)

    def _usable_caches(self, repack: bool) -> list[_Cache]:
        """The default, and what llama.cpp makes a context of for this model."""
        usable = []
        for cache in _CACHES:
            try:
                Context(self._model(repack), replace(cache.apply(self._settings), n_ctx=256, n_slots=1)).close()
            except ModelError:
                if cache is _DEFAULT:
                    raise
            else:
                usable.append(cache)
        return usable

    def _key(self, repack: bool, cache: _Cache) -> str:
        return probes.cache_key(self._model(repack), cache.apply(self._settings), self._widest)

    def _known(self, repack: bool, cache: _Cache) -> Probe | None:
        return probes.load(self._directory, self._key(repack, cache))

    def _measure(self, choices: list[tuple[bool, _Cache]]) -> None:
        """Costs of all `choices`, from disk if all are there (costs of different hours do not compare)."""
        stored = [self._probes.get(choice) or self._known(*choice) for choice in choices]
        if not all(probe is not None and probe.seconds for probe in stored):
            configurations = [(self._model(repack), cache.apply(self._settings)) for repack, cache in choices]
            measured = probing.measure(
                configurations,
                widest=self._widest,
                budget=self._budget / 4,
                progress=lambda share: self._report("measuring", share),
            )
            stored = [
                probe if old is None else replace(old, seconds=probe.seconds, prefill_rate=probe.prefill_rate)
                for probe, old in zip(measured, stored, strict=True)
            ]
        for choice, probe in zip(choices, stored, strict=True):
            if probe is not None:
                self._keep(choice, probe)

    def _keep(self, choice: tuple[bool, _Cache], probe: Probe) -> None:
        if self._probes.get(choice) != probe:
            self._probes[choice] = probe
            probes.store(self._directory, self._key(*choice), probe)

    def _examine(self, choice: tuple[bool, _Cache]) -> Probe:
        known = self._probes[choice]
        if known.exact is None and (self._strict or not (known.gave_up or self._clock.over())):
            repack, cache = choice
            known = probing.examine(
                self._model(repack),
                cache.apply(self._settings),
                known,
                widest=self._widest,
                budget=self._clock.left(),
                progress=lambda share: self._report(f"checking bits ({cache.name})", share),
            )
            self._keep(choice, known)
        return known

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
                break
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
        if self._gpu_layers != 0 or self._clock.over():
            return False
        widths = self._probes[best].exact if best is not None else None
        return widths is None or len(widths) < min(self._widest, 4)


def token_seconds(probe: Probe, widths: frozenset[int]) -> float:
    """Mean seconds per token over the probed lengths, each with the best of `widths`, drafting for free."""
    per_length = []
    for row in probe.seconds.values():
        tokens = {width: (1 - _HIT_RATE**width) / (1 - _HIT_RATE) for width in row}
        per_length.append(min(row[width] / tokens[width] for width in row if width in widths))
    return sum(per_length) / len(per_length) if per_length else float("inf")
