"""Settings to loaded parts: the target in an exact configuration, its draft model, drafters, plan and loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from localspec import kept
from localspec.config import FIXED_DRAFT, EngineSettings
from localspec.drafters import plugin
from localspec.drafters.draft_model import DraftContext, DraftModel, TranslatedContext, Translator
from localspec.drafters.heads import head as heads
from localspec.drafters.heads.head import Head
from localspec.drafters.search import PromptLookup
from localspec.drafters.setup import Setup, check_branches, code_of
from localspec.engine.interfaces import Drafter
from localspec.engine.loop import Loop
from localspec.errors import Cancelled, DecodeError, ModelError, UsageError
from localspec.gguf import Header, read_parts
from localspec.llama.cache.context import ConstantWidth, Context
from localspec.llama.exact import choice, wide
from localspec.llama.exact.choice import LoadedTarget, Progress, choose
from localspec.llama.exact.wide import CACHE_NAMES, Kernels, shared_facts
from localspec.llama.library.contention import cpus
from localspec.llama.library.settings import ContextSettings, union
from localspec.llama.model import check_text_model
from localspec.machine import ram
from localspec.methods import COPYING, HEADS, NAMES, PLAIN, TABLE
from localspec.models.facts import pairing
from localspec.models.facts.heads import check_target, keeps_state
from localspec.models.facts.shape import MEMORY_DIVISOR, ModelShape, default_context, is_small, shape_of
from localspec.models.memory.fit import rollback
from localspec.planning.plan import AdaptivePlan, FixedPlan, Forced
from localspec.runtime import costs, placement
from localspec.runtime.costs import KnowledgeStore
from localspec.runtime.kept import caches
from localspec.runtime.kept.corpus import Corpus, file_of
from localspec.runtime.loaded import Loaded
from localspec.runtime.placement import number

_LOG = logging.getLogger("localspec")
_FEWEST_ROWS = 64  # rows of a pass for which there is room however short drafts are
_CPU_SERVES = "The CPU serves, now and at later starts; `--gpu-layers -1` tries the GPU again."
CHUNKS = "of a prompt that it knows the model would reuse whole chunks only"
_LOOKUP_FIRST = 3.0
"""Tokens prompt lookup must match before it is preferred to the draft model; odds suffix decoding must have;
the confidence of habits, a chance, never reaches it."""


def load_models(settings: EngineSettings, progress: Progress | None = None) -> Loaded:
    """Loads the target and its drafters. Raises ModelFileError: a file is missing, damaged or of the wrong kind;
    ModelError: the target could not be shown to be exact under `strict`, or there is no memory; PairError: target and
    draft model share no tokenizer, or too few tokens, or a head is for another target; UsageError: no such device, no
    GPU for layers that are to be on one, or a drafter without what it needs."""
    target_header, match = check_text_model(settings.target), None
    check_target(target_header)
    found = heads.find_all(settings, target_header)
    if settings.draft is not None:
        draft_header = check_text_model(settings.draft)  # before minutes are spent on the target
        match = pairing.check(target_header, draft_header, cross_tokenizer=settings.cross_tokenizer)
    settings = replace(settings, branches=1) if keeps_state(target_header) else settings  # a state follows one chain
    placed = placement.place(settings)

    try:
        loaded = _load_parts(placed.settings, target_header, match, found, progress)
    except (ModelError, DecodeError) as error:
        if placed.chosen:
            failed, found = placement.on_cpu(placed, error.message), heads.find_all(settings, target_header)
            loaded = _load_parts(failed.settings, target_header, match, found, progress)  # or it is the file's fault
            _LOG.warning("The GPU (%s) failed: %s %s", placed.settings.device, error.message, _CPU_SERVES)
            placed = failed
        elif placed.settings.gpu_layers and (words := placement.shortage(placed)):
            raise type(error)(error.message, f"{words} Give fewer --gpu-layers, or leave them out.") from error
        else:
            raise
    placement.remember(placed)
    loaded.gpu_fault = placed.fault
    return loaded


def _load_parts(
    settings: EngineSettings,
    target_header: Header,
    match: pairing.Match | None,
    found: list[Head],
    progress: Progress | None,
) -> Loaded:
    try:
        chosen, single = _choose(settings, target_header, found, progress)
    except ModelError as error:
        asked = [head for head in found if heads.is_asked_for(head, settings)]
        if len(asked) == len(found):
            raise
        _LOG.warning("%s Loading goes on without the layers of multi-token prediction in the target's file.", error)
        found = asked
        chosen, single = _choose(settings, target_header, found, progress)
    loaded = Loaded(settings, chosen.model, chosen.context, chosen.description, heads=found)
    loaded.configuration, loaded.self_check, loaded.single = str(chosen.configuration), chosen.self_check, single
    if (settings.chat_cache_gb > 0 or settings.prompt_cache_gb > 0) and caches.can_save(chosen.context):
        loaded.cache_key = caches.key(chosen.context)
    try:
        if match is not None:
            _load_draft(loaded, match, progress)
        _know_costs(loaded)
        if settings.corpus == "on" and loaded.context.most_nodes:  # last: it reads on a thread of its own
            loaded.corpus = Corpus(
                file_of(target_header, settings.corpus_mb), loaded.model.n_vocab, settings.target.name
            )
    except BaseException:
        loaded.close()
        raise
    return loaded


def _choose(
    settings: EngineSettings, target: Header, found: Sequence[Head], progress: Progress | None
) -> tuple[LoadedTarget, str]:
    """Loads the target, with what its heads read of it; `Loaded.single`."""
    wanted, single = _wanted_context(settings, target, bool(found))
    spare = settings.second_slot and settings.slots == 1 and not single
    widest = (2 if spare else settings.slots) * (1 + settings.longest_draft)
    layers, spread = number(settings.gpu_layers), placement.spread(settings)
    timed = costs.read_passes(settings, layers, settings.device, spread) if layers else None
    chosen = choose(
        settings.target,
        replace(wanted, n_slots=2, reuse="chunks", max_rows=max(_FEWEST_ROWS, widest)) if spare else wanted,
        exact=settings.exact,
        kernels=_wished_kernels(settings),
        cache=CACHE_NAMES[settings.cache],
        widest=widest,
        gpu_layers=layers,
        device=settings.device,
        spread=spread,
        padded=None if timed is None else timed.padded,
        facts=kept.facts(),
        progress=progress,
        tap=union(head.tap for head in found),
        otherwise=wanted if spare else None,
    )
    if spare and chosen.context.settings.n_slots == 1:
        single = f"{CHUNKS}, since {chosen.proof.reason}"
    return chosen, single


def _wanted_context(settings: EngineSettings, target: Header, heads: bool) -> tuple[ContextSettings, str]:
    """The context without a second slot, and `Loaded.single` as far as it is known before loading."""
    shape, total = _shape(settings.target), ram().total_bytes
    draft = None if settings.draft is None else _shape(settings.draft)
    element_bytes = 1.0625 if settings.cache == "q8_0" else 2.0
    n_ctx = settings.context or default_context(shape, draft, settings.slots, total, element_bytes)
    wanted = ContextSettings(
        n_ctx=n_ctx,
        n_slots=settings.slots,
        max_leaves=leaves(settings),
        threads=settings.threads or 0,
        # With several slots, which of them is free depends on timing; what is reused must not. `choose` makes
        # it "all" where the cache does not depend on how it came about.
        reuse="chunks" if settings.exact == "strict" or settings.slots > 1 else "all",
        max_rows=max(_FEWEST_ROWS, settings.slots * (1 + settings.longest_draft)),
        rollback=rollback(shape, total, settings.rollback),
    )
    if not settings.second_slot or settings.slots > 1:
        return wanted, ""
    small = is_small(n_ctx, shape, draft, 2, total, element_bytes)
    return wanted, _objection(settings, target, heads, small)


def _objection(settings: EngineSettings, target: Header, heads: bool, small: bool) -> str:
    """What speaks against a second slot, in words; "" = nothing. A context of two slots has to be as good for one
    conversation as one of one. The answer follows from files, settings and all the memory there is, not from what is
    free: a saved cache of a chat serves contexts of the same number of slots only. `small`: a second cache is."""
    if settings.branches > 1:
        return "drafts are trees"
    if keeps_state(target):
        return "it could not draft, since some layers are recurrent"
    if heads:
        return "its heads would need a second cache, too"
    if number(settings.gpu_layers) or (_wished_kernels(settings) or choice.usual_kernels()) != "wide":
        return CHUNKS
    return "" if small else f"a second cache would take more than 1/{MEMORY_DIVISOR} of the memory with the first"


def _wished_kernels(settings: EngineSettings) -> Kernels | None:
    if settings.kernels != "auto":
        return settings.kernels
    return None if settings.wide else "repacked"


def load_apart(settings: EngineSettings, progress: Progress | None = None) -> Loaded:
    """`load_models` on a thread that ends with it; KeyboardInterrupt gives loading up at its next report.

    OpenMP keeps a pool for every thread that has ever computed. With more of them than CPUs libgomp's threads no longer
    wait awake for each other, and a pass that is cut into many parts takes a third longer (1 B Q8_0 on wide kernels, 2
    threads: 42 ms instead of 31). The pool of a thread that has ended is gone, so the engine's own is the only one.
    """
    given_up = threading.Event()

    def report(what: str, share: float) -> None:
        if given_up.is_set():
            raise Cancelled("Stopped.")
        if progress is not None:
            progress(what, share)

    with ThreadPoolExecutor(1, "localspec-loading") as one_thread:
        loading = one_thread.submit(load_models, settings, report)
        try:
            return loading.result()
        except BaseException:  # loading failed, or this thread was interrupted while it waited
            given_up.set()
            if loading.exception() is None:
                loading.result().close()
            raise


def _load_draft(loaded: Loaded, match: pairing.Match, progress: Progress | None) -> None:
    settings = loaded.settings
    assert settings.draft is not None
    shape = ContextSettings(
        n_ctx=loaded.context.n_ctx,
        n_slots=loaded.context.settings.n_slots,
        threads=settings.threads or 0,
        grid_prefill=False,
    )
    layers = number(settings.draft_gpu_layers)
    loaded.draft_model = choice.load(
        settings.draft,
        choice.kernels_beside(loaded.model, layers),
        layers,
        settings.draft_device,
        progress=progress,
        role="draft model",
    )
    loaded.draft_context = Context(loaded.draft_model, shape)
    loaded.shared = match.shared
    if match.shared is None:
        loaded.draft_context.n_vocab = min(loaded.draft_model.n_vocab, loaded.model.n_vocab)  # no guess beyond these
    elif match.warnings:  # none of a draft model that was trained for the target
        _LOG.warning("%s: %s.", loaded.draft_model.path.name, match.warnings[0])


def _know_costs(loaded: Loaded) -> None:
    """What is remembered of this pair on this machine, and estimates of what is not. Nothing is timed."""
    settings, context = loaded.settings, loaded.context
    loaded.store = store = _store(loaded)
    loaded.knowledge = knowledge = store.read()
    rows = context.settings.n_slots * (1 + min(settings.longest_draft, context.most_nodes))
    shape, rates = _shape(loaded.model.path), None
    kernels = costs.kernels_of(loaded.model, shape)
    if kernels == "wide" and (measured := wide.read_limits(context.threads)) is not None:
        rates = costs.Rates.of(measured)
    knowledge.costs = costs.pass_costs(shape, rows, (0, context.n_ctx), kernels, rates)
    knowledge.costs.recall(knowledge.kept_passes)
    draft = loaded.draft_model
    if draft is not None and DraftModel.NAME not in knowledge.draft_costs:
        shape = _shape(draft.path)
        knowledge.draft_costs[DraftModel.NAME] = costs.draft_costs(shape, costs.kernels_of(draft, shape), rates)


def _shape(path: Path) -> ModelShape:
    return shape_of(read_parts(path))


def _store(loaded: Loaded, alone: bool = False) -> KnowledgeStore:
    """Where what is learned is kept; `alone`: of the target without draft model and heads."""
    settings, context, model = loaded.settings, loaded.context, loaded.model
    facts = [shared_facts(settings.target, context.settings, model.gpu_layers, model.device, model.spread)]
    if settings.draft is not None and not alone:
        layers = number(settings.draft_gpu_layers)
        facts.append(shared_facts(settings.draft, context.settings, layers, settings.draft_device))
    found = [] if alone else [heads.identity(head) for head in loaded.heads]
    pair = {"files": [one["model"] for one in facts], "heads": found}
    machine = {
        "facts": facts,
        "heads": found,
        "configuration": loaded.configuration,
        "draft kernels": "" if alone or loaded.draft_model is None else loaded.draft_model.kernels,
        "slots": settings.slots,
        "n_ctx": context.n_ctx,
        "width": context.width if isinstance(context, ConstantWidth) else 0,
    }
    return KnowledgeStore(kept.facts(), pair, machine, _store(loaded, alone=True) if found or facts[1:] else None)


def leaves(settings: EngineSettings) -> int:
    """A tree of n nodes has at most n leaves."""
    return max(1, settings.longest_draft) if settings.branches > 1 else 1


def check_drafter(settings: EngineSettings) -> None:
    """Refuses drafter settings that cannot work, before minutes are spent on loading. Raises UsageError: no such
    drafter, it needs a draft model or head and there is none, or impossible n-grams."""
    name = settings.drafter
    plugin.check_name(name)
    if name == "draft" and settings.draft is None:
        raise UsageError("The drafter `draft` needs a draft model.", "Give one with --draft FILE, or a pair.")
    if name in HEADS and not heads.may_have(name, settings):
        raise heads.missing(name)
    PromptLookup(settings.min_ngram, settings.max_ngram)
    check_branches(settings.branches)


def make_drafters(loaded: Loaded, settings: EngineSettings) -> list[Drafter]:
    """Those that settings let guess, over the loaded parts; none for a model whose cache cannot be trimmed. One of an
    installed package that cannot be made is left out, and said once."""
    name, model = settings.drafter, loaded.model
    if name == PLAIN or min(settings.longest_draft, loaded.context.most_nodes) == 0:
        return []
    setup = Setup(
        settings.target,
        model.n_vocab,
        loaded.context.n_ctx,
        loaded.context.settings.n_slots,
        settings.longest_draft,
        leaves(settings),
        model.end_tokens,
        lambda text: model.tokenize(text, special=False, add_bos=False),
        model.piece,
        settings,
        loaded.corpus,
    )
    if name not in NAMES:
        return [plugin.make(name, setup)]
    trained = _trained(loaded, settings)  # first: what cannot be made is gone then
    crowded = bool(loaded.trained) and settings.max_draft_tokens is not None
    found = [
        code_of(row.name)(setup)
        for row in TABLE
        if row.kind == "search" and (name == row.name or (name == "auto" and not (row.everywhere and crowded)))
    ]
    for other in plugin.installed() if name == "auto" else ():
        if other in loaded.unusable:
            continue
        try:
            found.append(plugin.make(other, setup))
        except UsageError as error:
            loaded.unusable[other] = str(error)
            _LOG.warning("%s Answers go on without it.", error)
    return [*found, *(one for one in trained if name in ("auto", one.name))]


def _trained(loaded: Loaded, settings: EngineSettings) -> list[Drafter]:
    found: list[Drafter] = []
    if loaded.draft_context is not None:
        reads: DraftContext = loaded.draft_context
        if loaded.shared is not None:
            assert loaded.draft_model is not None
            translator = Translator(loaded.model, loaded.draft_model, loaded.shared)
            reads = TranslatedContext(loaded.draft_context, translator, loaded.shared)
        found.append(DraftModel(reads, loaded.model.end_tokens, settings.branches))
    for head in [one for one in loaded.heads if settings.drafter in ("auto", one.name)]:
        drafter = heads.attach(head, loaded.context, settings)
        if drafter is None:
            loaded.drop(head.name)
        else:
            found.append(drafter)
    return found


def make_loop(loaded: Loaded, settings: EngineSettings) -> Loop:
    """Of the target, with a plan of who drafts, and how much: what pays, unless settings force it."""
    widths, most = loaded.context.exact_widths, loaded.context.most_nodes
    wanted = None if settings.max_draft_tokens is None else min(settings.max_draft_tokens, most)
    drafters = make_drafters(loaded, settings)
    if not drafters:
        return Loop(loaded.context, FixedPlan((), 0, widths), loaded.model)
    thresholds = dict.fromkeys(COPYING, _LOOKUP_FIRST) if loaded.trained else {}  # before a draft model or head
    plan = AdaptivePlan(
        drafters,
        widths,
        loaded.knowledge,
        longest=min(settings.longest_draft, most),
        longest_costly=min(settings.longest_costly, most),
        fixed=FixedPlan(drafters, min(FIXED_DRAFT, most) if wanted is None else wanted, widths, thresholds),
        forced=Forced(wanted, settings.drafter != "auto"),
        delayed=cpus.claim_delay,
    )
    return Loop(loaded.context, plan, loaded.model)
