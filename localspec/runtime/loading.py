"""Settings to loaded parts: the target in an exact configuration, its draft model, the drafter they make."""

from __future__ import annotations

from dataclasses import dataclass

from localspec import paths
from localspec.config import EngineSettings
from localspec.drafters import NAMES
from localspec.drafters.cascade import Cascade, Stage
from localspec.drafters.draft_model import DraftModel, DraftModelSettings
from localspec.drafters.none import NoDrafter
from localspec.drafters.prompt_lookup import PromptLookup, PromptLookupSettings
from localspec.engine.interfaces import Drafter
from localspec.errors import UsageError
from localspec.llama.choice import Progress, choose
from localspec.llama.context import Context
from localspec.llama.model import Model, check_text_model
from localspec.llama.settings import ContextSettings

_LONGEST_CONTEXT = 4096
_LOOKUP_FIRST = 3.0
"""Tokens prompt lookup must match before it is preferred to the draft model."""


@dataclass(slots=True)
class Loaded:
    """Models and contexts in memory; whoever holds it closes it."""

    settings: EngineSettings
    model: Model
    context: Context
    exactness: str
    """In words: the configuration in use, and whether its passes are exact."""
    pass_seconds: dict[int, dict[int, float]]
    """{context length: {width: seconds of a pass}}, where it was measured."""
    draft_model: Model | None = None
    draft_context: Context | None = None

    def close(self) -> None:
        """Frees everything."""
        for part in (self.draft_context, self.draft_model, self.context, self.model):
            if part is not None:
                part.close()


def load_models(settings: EngineSettings, progress: Progress | None = None) -> Loaded:
    """Loads the target in the configuration that `settings.exact` asks for, and the draft model.

    Raises:
        ModelFileError: a file is missing, damaged or of the wrong kind.
        ModelError: no exact configuration under `strict`, or no memory.
        PairError: target and draft model do not share a tokenizer.
        UsageError: no such device, or a drafter without what it needs.
    """
    target_header, draft_header = check_text_model(settings.target), None
    if settings.draft is not None:
        draft_header = check_text_model(settings.draft)  # before minutes are spent on the target
    n_ctx = settings.context or min(target_header.context_length or _LONGEST_CONTEXT, _LONGEST_CONTEXT)
    widest = settings.slots * (1 + settings.max_draft_tokens)
    chosen = choose(
        settings.target,
        ContextSettings(
            n_ctx=n_ctx,
            n_slots=settings.slots,
            max_leaves=leaves(settings),
            threads=settings.threads or 0,
            # With several slots, which of them is free depends on timing; what is reused must not.
            reuse="chunks" if settings.exact == "strict" or settings.slots > 1 else "all",
            max_rows=max(64, widest),
        ),
        exact=settings.exact,
        widest=widest,
        gpu_layers=settings.gpu_layers,
        device=settings.device,
        cache_dir=paths.cache_dir() / "probes",
        progress=progress,
    )
    loaded = Loaded(settings, chosen.model, chosen.context, chosen.description, chosen.probe.seconds)
    try:
        if draft_header is not None:
            _load_draft(loaded, progress)
    except BaseException:
        loaded.close()
        raise
    return loaded


def _load_draft(loaded: Loaded, progress: Progress | None) -> None:
    settings = loaded.settings
    assert settings.draft is not None
    if progress is not None:
        progress("loading the draft model", 0.0)
    loaded.draft_model = Model.load(settings.draft, gpu_layers=settings.draft_gpu_layers, device=settings.draft_device)
    loaded.model.vocabulary_matches(loaded.draft_model)
    loaded.draft_context = Context(
        loaded.draft_model,
        ContextSettings(
            n_ctx=loaded.context.n_ctx,
            n_slots=settings.slots,
            threads=settings.threads or 0,
            grid_prefill=False,
        ),
    )


def leaves(settings: EngineSettings) -> int:
    """A tree of n nodes has at most n leaves."""
    return max(1, settings.max_draft_tokens) if settings.branches > 1 else 1


def check_drafter(settings: EngineSettings) -> None:
    """Refuses drafter settings that cannot work, before minutes are spent on loading.

    Raises:
        UsageError: no such drafter, it needs a draft model and there is none, or impossible n-grams.
    """
    name = settings.drafter
    if name not in NAMES:
        raise UsageError(f"There is no drafter called {name!r}; there are: {', '.join(NAMES)}.")
    if name == "draft" and settings.draft is None:
        raise UsageError("The drafter `draft` needs a draft model.", "Give one with --draft FILE, or a pair.")
    PromptLookupSettings(settings.min_ngram, settings.max_ngram)
    DraftModelSettings(settings.branches)


def make_drafter(loaded: Loaded, settings: EngineSettings) -> Drafter:
    """The drafter of that name over the loaded parts; plain decoding for a model whose cache cannot be trimmed."""
    name = settings.drafter
    if name == "none" or settings.max_draft_tokens == 0 or not loaded.model.can_trim:
        return NoDrafter()
    lookup = PromptLookup(PromptLookupSettings(settings.min_ngram, settings.max_ngram))
    if name == "lookup" or loaded.draft_context is None:
        return lookup
    draft = DraftModel(loaded.draft_context, loaded.model.end_tokens, DraftModelSettings(settings.branches))
    if name == "draft":
        return draft
    return Cascade([Stage(lookup, _LOOKUP_FIRST), Stage(draft)])
