"""What passes cost: estimated before any has run, and kept from run to run.

An estimate, from the sizes of a model and two rates of the machine, only has to be good enough for the first few
passes: every real one corrects it (`planning.costs`). What a target's passes took while answering, by where it runs, is
known at the next start before anything is loaded: it decides whether `auto` fills passes on a GPU up to one width
(`llama.exact.choice`), and whether an integrated GPU or the CPU serves (`placement.measured`). What plans know
(`KnowledgeStore`) is two facts: acceptance for each pair of files, costs for each target, machine and configuration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from localspec import kept
from localspec.config import EngineSettings
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.kept import FactStore
from localspec.llama.exact.wide import Limits, shared_facts
from localspec.llama.library.settings import GPU_WIDTH, ContextSettings
from localspec.models.facts.shape import ModelShape
from localspec.planning.acceptance import Table
from localspec.planning.costs import DraftCosts, Knowledge, PassCosts, kept_from_json

if TYPE_CHECKING:  # `list` reads rates without the library that loads models
    from localspec.llama.model import Model

Kernels = Literal["wide", "llama", "gpu"]  # ours, llama.cpp's on the CPU, or a GPU that has all of the model
_LAYER_SECONDS = 20e-6  # that a layer takes however small: nodes go from thread to thread. Bundled pair, 2 cores
_LLAMA_ROWS = 6.0  # seconds of a further row, in those on our kernels: 1 B in Q8_0, widths 1 to 8, AVX-512
_GPU_ROW = 0.05
"""Cost of each further row of a GPU's pass up to `GPU_WIDTH` rows, in passes of one row: 0.02 to 0.15 on cards of
NVIDIA's (issue 49); in worlds of both (tests/planning) 0.05 loses least."""
_GPU_STEP = 2.0
"""Factor on the cost of a GPU's pass of more than `GPU_WIDTH` rows, for which other kernels serve. In worlds whose
factor is 1.8 to 5 at least 0.87 of the best fixed choice is reached with 2."""
_REACHED_SHARE_OF_RATE = 0.65  # of the most int8 arithmetic: by 1 B in Q8_0, widths 1 to 8, two AVX-512 cores
_CACHE_BYTES = 2  # of an element of the cache; all formats but q8_0, which has half of it


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine can do, all its threads together."""

    memory: float = 20e9  # bytes read from memory a second. The default is that of two channels of DDR4
    products: float = 0.6e12  # weights multiplied and added a second; default: two cores with AVX-512 VNNI

    @classmethod
    def of(cls, limits: Limits) -> Rates:
        """What passes reach of what the machine could do at most."""
        return cls(limits.memory_rate, _REACHED_SHARE_OF_RATE * limits.int8_rate)


def kernels_of(model: Model, shape: ModelShape) -> Kernels:
    """Who computes most of its passes; where some layers are on a GPU, the CPU's part takes longest."""
    if model.kernels == "wide":
        return "wide"
    on_gpu = model.gpu_layers < 0 or model.gpu_layers > shape.n_layers
    return "gpu" if on_gpu and not model.spread.overrides else "llama"


def pass_seconds(shape: ModelShape, width: int, length: int, rates: Rates, kernels: Kernels = "wide") -> float:
    """Seconds of a pass of `width` rows after `length` cached tokens: all weights and the cache are read once, and each
    row takes its products. On a GPU rows cost little up to a step, whatever the shape."""
    if kernels == "gpu" and width > 1:
        step = _GPU_STEP if width > GPU_WIDTH else 1.0
        return step * (1.0 + _GPU_ROW * (width - 1)) * pass_seconds(shape, 1, length, rates)
    matrices = sum(layer.weights for layer in shape.layers) + shape.output_bytes
    cells = _CACHE_BYTES * length * sum(layer.key + layer.value for layer in shape.layers)
    rows = width * (_LLAMA_ROWS if kernels == "llama" else 1.0)
    return _LAYER_SECONDS * len(shape.layers) + read_seconds(matrices + cells, rates, rows)


def read_seconds(count: float, rates: Rates, rows: float = 1.0) -> float:
    """Seconds in which a machine reads so many bytes and multiplies them with so many rows; a byte is taken for a
    weight, since what is packed closer takes longer to unpack."""
    return count / rates.memory + rows * 2.0 * count / rates.products


def pass_costs(
    shape: ModelShape, widest: int, lengths: Sequence[int], kernels: Kernels, rates: Rates | None = None
) -> PassCosts:
    """`PassCosts` that begin with estimates, for widths up to `widest`, at these cached lengths."""
    rates = rates or Rates()
    table = {
        length: {width: pass_seconds(shape, width, length, rates, kernels) for width in range(1, widest + 1)}
        for length in lengths
    }
    # A row of a prompt needs no output, except the last. A prompt says nothing (0) where a GPU reads it, with kernels
    # of another kind.
    layers = sum(layer.weights for layer in shape.layers)
    row = 0.0 if kernels == "gpu" else layers / (layers + shape.output_bytes)
    return PassCosts(table, estimated=True, prompt_row=row)


def draft_costs(shape: ModelShape, kernels: Kernels, rates: Rates | None = None) -> DraftCosts:
    """`DraftCosts` of a draft model that begin with estimates; arguments as in `pass_costs`."""
    one, two = (pass_seconds(shape, width, 0, rates or Rates(), kernels) for width in (1, 2))
    return DraftCosts({1: one}, two - one, estimated=True)


_COMPARED_LENGTH = 512  # tokens in the cache at which passes are compared: those of a short chat


@dataclass(frozen=True, slots=True)
class TimedPasses:
    plain: float  # seconds of a pass of one row
    padded: float | None  # how many times as long one of `GPU_WIDTH` rows takes; None = none was timed


def read_passes(
    settings: EngineSettings, layers: int, device: str | None, spread: Spread = BY_LAYER
) -> TimedPasses | None:
    """What passes took with so many layers on these devices; None = nothing is known, or it cannot be read."""

    def made(data: Any) -> TimedPasses:
        found = TimedPasses(float(data["plain"]), None if data["padded"] is None else float(data["padded"]))
        if not all(0.0 < one < math.inf for one in (found.plain, 1.0 if found.padded is None else found.padded)):
            raise ValueError("a pass takes some time")
        return found

    return kept.facts().read("passes", _key(settings, layers, device, spread), made)


def write_passes(settings: EngineSettings, costs: PassCosts, layers: int, device: str | None, spread: Spread) -> None:
    """Keeps what was timed with the target there, if a plain pass was; a full or read-only disk is no error."""
    if 1 not in costs.timed:
        return
    plain, wide = costs.seconds(1, _COMPARED_LENGTH), costs.widest >= GPU_WIDTH and GPU_WIDTH in costs.timed
    found = TimedPasses(plain, costs.seconds(GPU_WIDTH, _COMPARED_LENGTH) / plain if wide else None)
    kept.facts().write("passes", _key(settings, layers, device, spread), asdict(found))


def _key(settings: EngineSettings, layers: int, device: str | None, spread: Spread) -> dict[str, Any]:
    facts = shared_facts(settings.target, ContextSettings(threads=settings.threads or 0), layers, device, spread)
    return {**facts, "cache": settings.cache, "slots": settings.slots}


_HALF_LIFE = 30 * 24 * 3600.0  # seconds after which learned passes count as half as many: a month of updates and dust


@dataclass(frozen=True, slots=True)
class KnowledgeStore:
    facts: FactStore
    pair: dict[str, Any]  # what acceptance depends on
    machine: dict[str, Any]  # what costs depend on
    alone: KnowledgeStore | None = None  # the target's: its passes cost the same, drafters of text are right as often

    def read(self) -> Knowledge:
        """What is there; of a pair that never ran, what is known of its target."""
        found = Knowledge() if self.alone is None else self.alone.read()

        def tables(data: Any) -> dict[str, Table]:
            return {str(name): Table.from_json(one) for name, one in data.items()}

        def costs(data: Any) -> tuple[dict[int, tuple[float, float]], dict[str, DraftCosts]]:
            fresh = 0.5 ** (max(0.0, time.time() - float(data["time"])) / _HALF_LIFE)
            kept_passes = kept_from_json(data["passes"]).items()
            passes = {width: (ratio, weight * fresh) for width, (ratio, weight) in kept_passes}
            return passes, {str(name): DraftCosts.from_json(one) for name, one in data["drafts"].items()}

        found.acceptance |= self.facts.read("acceptance", self.pair, tables) or {}
        if (known := self.facts.read("costs", self.machine, costs)) is not None:
            found.kept_passes, found.draft_costs = known
        return found

    def write(self, knowledge: Knowledge) -> None:
        self.facts.write("acceptance", self.pair, {name: asdict(one) for name, one in knowledge.acceptance.items()})
        costs = {
            "passes": {width: list(one) for width, one in knowledge.costs.kept().items()},
            "drafts": {name: one.to_json() for name, one in knowledge.draft_costs.items() if one.timed},
            "time": time.time(),
        }
        self.facts.write("costs", self.machine, costs)
