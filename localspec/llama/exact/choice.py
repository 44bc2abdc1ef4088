"""How the target runs: whose kernels, which number format of the cache, and which widths are exact.

Nothing is compared and nothing is timed. On a CPU our own kernels serve (native/wide), elsewhere llama.cpp's. Whether
that is exact follows from the graph of a pass (see `exactness`); where it does not, `strict` examines real passes (see
`widths`), which takes minutes and is remembered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from localspec.errors import ModelError, UsageError
from localspec.gguf import parts_of, split_of
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.kept import NOWHERE, FactStore
from localspec.llama.cache.constant_width import ConstantWidth
from localspec.llama.cache.context import Context
from localspec.llama.exact import exactness, wide
from localspec.llama.exact import widths as probing
from localspec.llama.exact.exactness import Exactness
from localspec.llama.exact.facts import SelfCheck, kernels_id, shared_facts
from localspec.llama.exact.wide import ALL_KERNELS, DEFAULT_CACHE, CacheFormat, Configuration, Kernels, StepWatch
from localspec.llama.library.settings import GPU_WIDTH, NO_TAP, ContextSettings, Tap
from localspec.llama.model import Model

Mode = Literal["auto", "strict", "off"]
Progress = Callable[[str, float], None]  # (what is being done, share done from 0 to 1); may raise to give up

_EXAMINATION_SECONDS = 600.0  # seconds that `strict` may take to examine a model of which nothing is proved
MOST_PADDED_COST = 1.1
"""Highest cost, in plain passes, of a pass of `GPU_WIDTH` rows at which `auto` runs passes of one width on a GPU
(issue 49: at most 10 % more)."""
_SELF_CHECK_SECONDS = 0.5
"""Seconds that the self-check of our kernels may take before the first answer under `strict`."""


_TREES_VERSION = 2  # version of the trees that `widths` examines: results of another version do not count


@dataclass(slots=True)
class Chosen:
    model: Model
    context: Context
    configuration: Configuration
    proof: Exactness  # what the graphs of the target's passes prove about widths and prompts
    description: str  # the configuration in words, whether it is exact, and why
    self_check: SelfCheck | None = None  # self-check of our kernels, if they compute the target's passes

    @property
    def exact(self) -> bool:
        """Whether every pass of an exact width has the bits of plain decoding; `context.exact_widths` are those."""
        return self.context.exact_widths is not None

    def close(self) -> None:
        self.context.close()
        self.model.close()


def choose(
    path: str | Path,
    settings: ContextSettings,
    *,
    exact: Mode = "auto",
    kernels: Kernels | None = None,
    cache: CacheFormat = DEFAULT_CACHE,
    widest: int = probing.WIDEST_PROBED,
    gpu_layers: int = 0,
    device: str | None = None,
    spread: Spread = BY_LAYER,
    padded: float | None = None,
    facts: FactStore = NOWHERE,
    progress: Progress | None = None,
    tap: Tap = NO_TAP,
    otherwise: ContextSettings | None = None,
) -> Chosen:
    """Loads a target.

    Args:
        settings: of the context; its cache types and flash attention are those of `cache`.
        exact: "auto" = exact where that follows from the graph; "strict" = exact in any case, which may need an
            examination; "off" = nothing is claimed.
        kernels: who computes passes on the CPU; None = ours where they can be used, else llama.cpp's.
        widest: widest pass the engine will ask for (1 + most draft nodes, over all slots).
        gpu_layers, device, spread: as in `Model.load`.
        padded: how many times as long as a plain pass one of `GPU_WIDTH` rows took on this GPU; None = not known.
        facts: where what is examined is kept.
        tap: hidden states that the context hands out; they change no bit.
        otherwise: settings of the context where its cache depends on how prompts are cut; None = the same.

    Raises:
        ModelError: "strict", and the model could not be examined in ten minutes; or what `Model.load` and `Context`
            raise.
        UsageError: `exact` or `kernels` is none of those that there are.
    """
    _check_wishes(exact, kernels)
    check = _self_check(kernels, gpu_layers, settings.threads, exact, facts)
    sound = check is None or not check.fault
    configuration = Configuration(kernels or (usual_kernels(gpu_layers) if sound else "repacked"), cache)
    report = progress or (lambda what, share: None)
    model = load(path, configuration.kernels, gpu_layers, device, spread, nextn=tap.nextn, progress=report)
    try:
        context = _context(model, configuration.apply(settings), exact, padded, facts, tap)
        proof = _proof(context, widest, check)
        if otherwise is not None and not proof.prefill:
            context.close()
            context = _context(model, configuration.apply(otherwise), exact, padded, facts, tap)
            proof = _proof(context, widest, check)
        why = _settle(context, proof, exact, padded, lambda: _examined(context, widest, facts, report))
    except BaseException:
        model.close()
        raise
    word = "inexact" if context.exact_widths is None else "exact"
    used = check if model.kernels == "wide" else None
    return Chosen(model, context, configuration, proof, f"{word}: {configuration} ({why})", used)


def _settle(
    context: Context, proof: Exactness, exact: Mode, padded: float | None, examined: Callable[[], frozenset[int]]
) -> str:
    """Tells the context its exact widths and what of its cache counts; why these, in words."""
    if proof.prefill:
        context.reuse_all()
    if isinstance(context, ConstantWidth):
        context.exact_widths = frozenset(range(1, 1 + context.width))  # as many rows as count
        cost = "" if padded is None else f", which take {padded:.2f} times as long as plain ones"
        return f"all passes have {context.width} rows{cost}"
    if exact == "strict" and not proof.widths and context.most_nodes:
        context.exact_widths = examined()
        return "bits of real passes were compared"
    if exact != "off" and (proof.widths or not context.most_nodes):
        context.exact_widths = frozenset(range(1, 1 + (context.settings.max_rows if context.most_nodes else 1)))
        context.watch = StepWatch(proof.steps) if proof.widths else None
    return _why(context, proof, exact, padded)


def _context(
    model: Model, settings: ContextSettings, exact: Mode, padded: float | None, facts: FactStore, tap: Tap
) -> Context:
    """On a GPU passes have one width under `strict`, and under `auto` with one slot and without trees if that costs
    little. Raises ModelError: "strict", and rows differ even so."""
    alone = settings.n_slots == 1 and settings.max_leaves == 1
    cheap = exact == "auto" and alone and padded is not None and padded <= MOST_PADDED_COST
    if not (exact == "strict" or cheap) or not model.gpu_layers or not model.can_trim:
        return Context(model, settings, tap=tap)
    chains = replace(settings, max_leaves=1, reuse="chunks", n_ctx=settings.n_ctx + GPU_WIDTH - 1)
    context = ConstantWidth(model, chains, GPU_WIDTH, tap)
    if context.same_bits() if exact == "strict" else _had_same_bits(context, facts):
        return context
    context.close()
    if exact == "strict":
        raise ModelError(
            f"Rows of {model.path.name} differ on this GPU even in passes of one width.", "--gpu-layers 0 is exact."
        )
    return Context(model, settings, tap=tap)


def _had_same_bits(context: ConstantWidth, facts: FactStore) -> bool:
    """Whether rows of such a context have the bits of their own passes; compared once, and remembered."""
    about = key(context, context.width)
    known = facts.read("widths", about, _widths)
    if known is None:
        known = frozenset({1, context.width} if context.same_bits() else {1})
        facts.write("widths", about, {"exact": sorted(known)})
    return len(known) > 1


def _self_check(
    kernels: Kernels | None, gpu_layers: int, threads: int, exact: Mode, facts: FactStore
) -> SelfCheck | None:
    """What is known of our kernels here, if they may serve; under `strict` they are tried now."""
    if (kernels or usual_kernels(gpu_layers)) != "wide":
        return None
    check = SelfCheck(facts, threads)
    if exact == "strict":
        check.run(_SELF_CHECK_SECONDS)
    return check


def _check_wishes(exact: str, kernels: str | None) -> None:
    if exact not in ("auto", "strict", "off"):
        raise UsageError(f"exact is {exact!r}; it must be auto, strict or off.")
    if kernels is not None and kernels not in ALL_KERNELS:
        raise UsageError(f"kernels is {kernels!r}; it must be one of {', '.join(ALL_KERNELS)}.")


def _proof(context: Context, widest: int, check: SelfCheck | None) -> Exactness:
    if check is not None and check.fault and context.model.kernels == "wide":
        return Exactness(False, False, f"localspec's kernels compute {check.fault} differently at some widths")
    return exactness.by_construction(context, widest)


def usual_kernels(gpu_layers: int = 0) -> Kernels:
    """Ours for models on the CPU, where they can be used; else llama.cpp's, with weights reordered for speed."""
    return "wide" if gpu_layers == 0 and wide.available() else "repacked"


def kernels_beside(target: Model, gpu_layers: int = 0) -> Kernels:
    """Kernels of a draft model: ours if the target uses them, else llama.cpp's."""
    return usual_kernels(gpu_layers) if target.kernels == "wide" else "repacked"


def load(
    path: str | Path,
    kernels: Kernels,
    gpu_layers: int = 0,
    device: str | None = None,
    spread: Spread = BY_LAYER,
    *,
    nextn: bool = False,
    progress: Progress | None = None,
    role: str = "target",
) -> Model:
    """`Model.load`, telling `progress` what is loaded; `role` names it there."""
    if kernels == "wide":
        wide.turn_off_tiles()

    named = split_of(Path(path).name).stem if role == "target" else f"the {role} {split_of(Path(path).name).stem}"
    size = sum(part.stat().st_size for part in parts_of(Path(path)) if part.exists())
    what = f"loading {named}, {size / 1e9:.1f} GB" if size >= 1e9 else f"loading {named}, {size / 1e6:.0f} MB"

    def told(share: float) -> bool:
        if progress is not None:
            progress(what, share)
        return True

    return Model.load(
        path, gpu_layers=gpu_layers, device=device, spread=spread, kernels=kernels, nextn=nextn, progress=told
    )


def _why(context: Context, proof: Exactness, exact: Mode, padded: float | None) -> str:
    if not context.most_nodes:
        return "its state cannot be trimmed, so nothing is drafted"
    if exact == "off":
        return "exactness is off"
    if proof.widths or not context.model.gpu_layers or padded is None:
        return str(proof)
    return f"{proof}; passes of {GPU_WIDTH} rows take {padded:.2f} times as long as plain ones"


def _widths(data: Any) -> frozenset[int]:
    found = frozenset(int(width) for width in data["exact"])
    if 1 not in found:
        raise ValueError("width 1 is always exact")
    return found


def key(context: Context, widest: int) -> dict[str, Any]:
    """What exact widths depend on: every fact that can change bits."""
    model, settings = context.model, context.settings
    return {
        **shared_facts(model.path, settings, model.gpu_layers, model.device, model.spread),
        "kernels": kernels_id(model.kernels),
        "cache": [settings.type_k, settings.type_v, str(settings.flash_attention), True],  # beside its layers
        "shape": [settings.n_ctx, settings.n_slots, settings.max_leaves, settings.grid, widest],
        **({"trees": _TREES_VERSION} if settings.max_leaves > 1 else {}),
    }


def _examined(context: Context, widest: int, facts: FactStore, report: Progress) -> frozenset[int]:
    """Exact widths, found by comparing the bits of real passes, now or at an earlier start."""
    model, settings = context.model, context.settings
    widest = max(probing.WIDEST_PROBED, min(widest, 1 + context.most_nodes))
    about = key(context, widest)
    known = facts.read("widths", about, _widths)
    if known is None:
        started = time.monotonic()

        def told(share: float) -> None:
            spent = time.monotonic() - started
            left = f", about {spent * (1 - share) / share:.0f} s left" if share else ""
            report(f"checking bits{left}", share)

        known = probing.examine(model, settings, widest=widest, budget=_EXAMINATION_SECONDS, progress=told)
        if known is None:
            raise ModelError(
                f"{model.path.name} could not be shown to be exact here in {_EXAMINATION_SECONDS / 60:.0f} minutes.",
                "Use --exact auto.",
            )
        facts.write("widths", about, {"exact": sorted(known)})
    return known
