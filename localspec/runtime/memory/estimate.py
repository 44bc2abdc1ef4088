"""What passes cost before any has run: from the sizes of a model and two rates of the machine.

An estimate only has to be good enough for the first few passes: every real pass corrects it (see `planning.costs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from localspec.llama.cache.constant_width import GPU_WIDTH
from localspec.llama.exact.limits import Limits
from localspec.llama.model import Model
from localspec.models.facts.shape import ModelShape
from localspec.planning.costs import DraftCosts, PassCosts

Kernels = Literal["wide", "llama", "gpu"]
"""Who computes passes: our kernels, llama.cpp's on the CPU, or a GPU that has all of the model."""
_LAYER_SECONDS = 20e-6
"""What a layer takes however small it is: its nodes are handed from thread to thread. Bundled pair, 2 cores."""
_LLAMA_ROWS = 6.0
"""How many times as long a further row takes on llama.cpp's kernels as on ours: 1 B in Q8_0, widths 1 to 8, AVX-512."""
_GPU_ROW = 0.05
"""Cost of each further row of a GPU's pass up to `GPU_WIDTH` rows, in passes of one row: 0.02 to 0.15 on cards of
NVIDIA's (issue 49); in worlds of both (tests/planning) 0.05 loses least."""
_GPU_STEP = 2.0
"""Factor on the cost of a GPU's pass of more than `GPU_WIDTH` rows, for which other kernels serve. In worlds whose
factor is 1.8 to 5 at least 0.87 of the best fixed choice is reached with 2."""
_REACHED_SHARE_OF_RATE = 0.65
"""Share of the most int8 arithmetic that products reach: 1 B in Q8_0, widths 1 to 8, two cores with AVX-512."""
_CACHE_BYTES = 2
"""Of an element of the cache; all formats but q8_0, which has half of it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine can do, all its threads together."""

    memory: float = 20e9
    """Bytes read from memory a second. The default is that of two channels of DDR4."""
    products: float = 0.6e12
    """Multiplications and additions of weights a second. The default is that of two cores with AVX-512 VNNI."""

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
    """Seconds of a pass: all weights and the cache are read once, and each row takes its products. On a GPU rows cost
    little up to a step, whatever the shape.

    Args:
        shape: of the model.
        width: rows of the pass, over all slots.
        length: tokens in the cache.
        rates: of the machine.
        kernels: who computes it.
    """
    if kernels == "gpu" and width > 1:
        step = _GPU_STEP if width > GPU_WIDTH else 1.0
        return step * (1.0 + _GPU_ROW * (width - 1)) * pass_seconds(shape, 1, length, rates)
    matrices = sum(layer.weights for layer in shape.layers) + shape.output_bytes
    cells = _CACHE_BYTES * length * sum(layer.key + layer.value for layer in shape.layers)
    rows = width * (_LLAMA_ROWS if kernels == "llama" else 1.0)
    return _LAYER_SECONDS * len(shape.layers) + read_seconds(matrices + cells, rates, rows)


def read_seconds(count: float, rates: Rates, rows: float = 1.0) -> float:
    """Seconds in which a machine reads so many bytes and multiplies them with so many rows. A byte is taken for a
    weight: what is packed closer takes longer to unpack.
    """
    return count / rates.memory + rows * 2.0 * count / rates.products


def pass_costs(
    shape: ModelShape, widest: int, lengths: Sequence[int], kernels: Kernels, rates: Rates | None = None
) -> PassCosts:
    """`PassCosts` that begin with estimates.

    Args:
        shape: of the target.
        widest: widths up to this can be asked for.
        lengths: cached lengths to estimate at; between them costs are straight lines.
        kernels: who computes passes.
        rates: of the machine; None = the defaults.
    """
    rates = rates or Rates()
    table = {
        length: {width: pass_seconds(shape, width, length, rates, kernels) for width in range(1, widest + 1)}
        for length in lengths
    }
    return PassCosts(table, estimated=True, prompt_row=prompt_row(shape, kernels))


def prompt_row(shape: ModelShape, kernels: Kernels) -> float:
    """What a row of a prompt costs, as a share of a row of a pass that decodes: it needs no output, except the last.

    0 = a prompt says nothing, as a GPU reads it with kernels of another kind.
    """
    layers = sum(layer.weights for layer in shape.layers)
    return 0.0 if kernels == "gpu" else layers / (layers + shape.output_bytes)


def draft_costs(shape: ModelShape, kernels: Kernels, rates: Rates | None = None) -> DraftCosts:
    """`DraftCosts` of a draft model that begin with estimates; arguments as in `pass_costs`."""
    one, two = (pass_seconds(shape, width, 0, rates or Rates(), kernels) for width in (1, 2))
    return DraftCosts({1: one}, two - one, estimated=True)
