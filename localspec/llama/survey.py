"""What is known about the configurations of one model: from disk, or measured and examined now, within a budget.

Costs are compared with each other within one measurement, turn and turn about. At most two copies of the model are in
memory at once, and one where two do not fit; then configurations are measured one after the other.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.errors import ModelError, ModelFileError
from localspec.gguf.split import read_parts
from localspec.llama import lib
from localspec.llama import probe as probes
from localspec.llama import widths as probing
from localspec.llama.configuration import DEFAULT_CACHE, Configuration, Kernels
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.probe import Probe, token_seconds
from localspec.llama.settings import ContextSettings

Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1); may raise to give up."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Which file, and where its layers go; see `Model.load`."""

    path: Path
    gpu_layers: int = 0
    device: str | None = None
    role: str = "target"
    nextn: bool = False

    def load(self, kernels: Kernels, progress: Callable[[float], bool]) -> Model:
        return Model.load(
            self.path,
            gpu_layers=self.gpu_layers,
            device=self.device,
            kernels=kernels,
            nextn=self.nextn,
            progress=progress,
        )

    def fit_twice(self) -> bool:
        """Whether two copies fit into the memory that is free now, as far as that can be known."""
        free, size = lib.available_bytes(), 0
        with contextlib.suppress(OSError, ModelFileError):  # `load` says it better
            size = sum(part.path.stat().st_size for part in read_parts(self.path))
        return free is None or 2.2 * size < free


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds that finding out may take, roughly, loading excepted."""

    measuring: float
    """For each comparison of costs."""
    all: float


class Survey:
    """Facts about configurations, and the models loaded to find them out."""

    def __init__(
        self,
        weights: Weights,
        settings: ContextSettings,
        widest: int,
        directory: Path | None,
        budget: Budget,
        progress: Progress | None,
    ) -> None:
        """`settings` and `widest` are those everything is measured and examined with; nothing happens yet."""
        self._weights, self._settings, self._widest = weights, settings, widest
        self._directory, self._budget, self._progress = directory, budget, progress
        self._spent = 0.0
        """Seconds of measuring and examining so far: a slow disk or what is known already takes nothing away."""
        self._gave_up = False
        self._most_models = 2 if weights.fit_twice() else 1
        self._models: dict[Kernels, Model] = {}
        self._probes: dict[Configuration, Probe] = {}

    # -- models -------------------------------------------------------------------------------------------------

    def model(self, kernels: Kernels) -> Model:
        """The model with these kernels; another one may be closed to make room."""
        return self._loaded([kernels])[0]

    def take(self, kernels: Kernels) -> Model:
        """The same, now the caller's to close; the others are closed."""
        for other in [name for name in self._models if name != kernels]:
            self._models.pop(other).close()
        model = self.model(kernels)
        self._models.clear()
        return model

    def close(self) -> None:
        """Frees every model that was not taken."""
        for model in self._models.values():
            model.close()
        self._models.clear()

    def _loaded(self, wanted: Sequence[Kernels]) -> list[Model]:
        for kernels in wanted:
            if kernels not in self._models:
                held = [name for name in self._models if name not in wanted]
                while held and len(self._models) >= self._most_models:
                    self._models.pop(held.pop(0)).close()
                self._models[kernels] = self._weights.load(kernels, self._loading)
        return [self._models[kernels] for kernels in wanted]

    def _loading(self, share: float) -> bool:
        self.report(f"loading the {self._weights.role}", share)
        return True

    def report(self, what: str, share: float) -> None:
        """Tells whoever waits."""
        if self._progress is not None:
            self._progress(what, share)

    # -- facts --------------------------------------------------------------------------------------------------

    def key(self, kernels: Kernels, settings: ContextSettings, widest: int) -> str:
        """Name of the file of what is known."""
        weights = self._weights
        return probes.cache_key(
            weights.path, settings, widest, kernels=kernels, gpu_layers=weights.gpu_layers, device=weights.device
        )

    def known(self, configuration: Configuration) -> Probe | None:
        """What is known: found out by this survey, or on disk; None = nothing."""
        found = self._probes.get(configuration)
        return probes.load(self._directory, self._key(configuration)) if found is None else found

    def measured(self, configuration: Configuration) -> bool:
        """Whether its costs are known."""
        return bool(self._probes[configuration].seconds)

    def examined(self, configuration: Configuration) -> bool:
        """Whether its exact widths are known."""
        return self._probes[configuration].exact is not None

    def drafts(self, configuration: Configuration) -> bool:
        """Whether it is known to be exact for more than single rows."""
        return len(self._probes[configuration].exact or ()) > 1

    def cost(self, configuration: Configuration) -> float:
        """Seconds a token, see `token_seconds`, with the widths known to be exact."""
        found = self._probes[configuration]
        return token_seconds(found, found.exact or frozenset({1}))

    def unrestricted(self, configuration: Configuration) -> float:
        """The same with every width."""
        return token_seconds(self._probes[configuration], frozenset(range(1, self._widest + 1)))

    def usable(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """Those llama.cpp makes a context of for this model, at least one; the default cache may not be missing."""
        usable: list[Configuration] = []
        refusal: ModelError | None = None
        for configuration in configurations:
            settings = replace(configuration.apply(self._settings), n_ctx=256, n_slots=1)
            try:
                Context(self.model(configuration.kernels), settings).close()
                usable.append(configuration)
            except ModelError as error:
                refusal = error if refusal is None or configuration.cache is DEFAULT_CACHE else refusal
        asked = any(configuration.cache is DEFAULT_CACHE for configuration in configurations)
        found = any(configuration.cache is DEFAULT_CACHE for configuration in usable)
        if refusal is not None and (not usable or (asked and not found)):
            raise refusal
        return usable

    # -- measuring and examining --------------------------------------------------------------------------------

    def measure(self, configurations: Sequence[Configuration]) -> None:
        """Costs of all, from disk if they come from one measurement (those of different hours do not compare)."""
        known = [self.known(configuration) or Probe() for configuration in configurations]
        if not all(probe.seconds for probe in known) or len({probe.measurement for probe in known}) > 1:
            name = uuid.uuid4().hex
            known = [
                replace(old, seconds=found.seconds, prefill_rate=found.prefill_rate, measurement=name)
                for found, old in zip(self._measured(configurations), known, strict=True)
            ]
        for configuration, probe in zip(configurations, known, strict=True):
            self._keep(configuration, probe)

    def measure_beside(self, other: Configuration, base: Configuration) -> bool:
        """Costs of `other` on the scale of the first measurement, which `base` took part in; False = none.

        Both are measured now; the costs of `base` stay what they were.
        """
        before = self.unrestricted(base)
        again, found = self._measured([base, other])
        if not (again.seconds and math.isfinite(before)):
            return False
        scale = before / token_seconds(again, frozenset(range(1, self._widest + 1)))
        seconds = {n: {width: scale * s for width, s in row.items()} for n, row in found.seconds.items()}
        known = self.known(other) or Probe()
        name = self._probes[base].measurement
        self._keep(other, replace(known, seconds=seconds, prefill_rate=found.prefill_rate, measurement=name))
        return True

    def examine(self, configuration: Configuration) -> None:
        """Which widths are exact, if that is not known and there is time; some is left for costs not yet measured."""
        known = self._probes[configuration] = self.known(configuration) or Probe()
        reserve = 0.0 if known.seconds else self._budget.measuring
        if self.unexamined(known):
            with self._spending():
                known = probing.examine(
                    self.model(configuration.kernels),
                    configuration.apply(self._settings),
                    known,
                    widest=self._widest,
                    budget=self.time_left - reserve,
                    progress=lambda share: self.report(f"checking bits ({configuration})", share),
                )
            self._gave_up = self._gave_up or known.exact is None
            self._keep(configuration, known)

    def unexamined(self, known: Probe) -> bool:
        """Whether there is something left to find out, and time for it."""
        return known.exact is None and self.has_time()

    @property
    def unfinished(self) -> bool:
        """Whether an examination, or what would have come after it, ran out of time."""
        return self._gave_up or not self.has_time()

    def has_time(self) -> bool:
        """Whether the budget is not used up."""
        return self.time_left > 0.0

    @property
    def time_left(self) -> float:
        """Seconds of the budget."""
        return self._budget.all - self._spent

    def _measured(self, configurations: Sequence[Configuration]) -> list[Probe]:
        kernels = list(dict.fromkeys(configuration.kernels for configuration in configurations))
        groups = [kernels] if len(kernels) <= self._most_models else [[name] for name in kernels]
        found: dict[Configuration, Probe] = {}
        for group in groups:
            members = [configuration for configuration in configurations if configuration.kernels in group]
            models = dict(zip(group, self._loaded(group), strict=True))
            with self._spending():
                probes_of = probing.measure(
                    [(models[member.kernels], member.apply(self._settings)) for member in members],
                    widest=self._widest,
                    budget=self._budget.measuring * len(members) / len(configurations),
                    progress=lambda share: self.report("measuring", share),
                )
            found |= zip(members, probes_of, strict=True)
        return [found[configuration] for configuration in configurations]

    def _key(self, configuration: Configuration) -> str:
        return self.key(configuration.kernels, configuration.apply(self._settings), self._widest)

    def _keep(self, configuration: Configuration, probe: Probe) -> None:
        self._probes[configuration] = probe
        if configuration.kernels == "plain":
            probe = replace(
                probe, seconds={}, prefill_rate=0.0, measurement=""
            )  # only compares with this start's costs
        probes.store(self._directory, self._key(configuration), probe)

    @contextlib.contextmanager
    def _spending(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - start
