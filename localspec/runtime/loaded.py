"""Models and contexts in memory, with what is known of them; `ModelFacts` can be sent to another process as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from localspec.config import EngineSettings
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.heads.head import Head
from localspec.llama.cache.context import ConstantWidth, Context
from localspec.llama.exact.wide import SelfCheck
from localspec.llama.library.settings import union
from localspec.llama.model import Model
from localspec.models.facts.pairing import SharedVocabulary
from localspec.planning.costs import Knowledge
from localspec.runtime import costs
from localspec.runtime.costs import KnowledgeStore
from localspec.runtime.kept.corpus import Corpus
from localspec.runtime.memory import gpus, integrated_gpus
from localspec.runtime.placement import number

if TYPE_CHECKING:
    from localspec.chat.prompt.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class ModelFacts:
    target: str  # path of its file
    draft: str | None  # the draft model's; None = there is none
    heads: dict[str, str]  # paths of heads by their names
    slots: int  # requests at once
    context: int  # tokens a conversation may have
    exactness: str  # in words: the configuration in use, and whether its passes are exact
    configuration: str  # in words: how the target's cache is kept, and whose kernels compute its passes
    speculative: dict[str, Any]  # of the settings: drafter, max_draft_tokens, verify_rule, exact
    wide: bool  # whether kernels of our own may be used
    template: str  # its chat template; "" = it has none of its own
    completes: bool  # no chat template goes with it
    channels: bool  # it says what it thinks and what it answers in channels
    fills_in: bool  # it has tokens to fill in a gap with
    bos: str
    eos: str  # texts of its first and last token; "" = there is none
    vocab_type: int
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    on_gpus: float  # share of its layers
    layers: tuple[str, ...] = ()  # what of it runs where, in words; nothing on a machine without a GPU

    @classmethod
    def of(cls, loaded: Loaded, template: ChatTemplate) -> ModelFacts:
        """Without `layers`."""
        settings, model = loaded.settings, loaded.model
        given, all_layers = number(settings.gpu_layers), model.header.n_layers + 1
        return cls(
            target=str(settings.target),
            draft=None if settings.draft is None else str(settings.draft),
            heads={head.name: str(head.path) for head in loaded.heads},
            slots=settings.slots,
            context=loaded.context.n_ctx,
            exactness=loaded.exactness,
            configuration=loaded.configuration,
            speculative={
                "drafter": settings.drafter,
                "max_draft_tokens": settings.max_draft_tokens,
                "verify_rule": settings.verify_rule.name.lower(),
                "exact": settings.exact,
            },
            wide=settings.wide,
            template=model.chat_template or "",
            completes=not template.exists,
            channels=template.has_channels,
            fills_in=model.fill_in is not None,
            bos=model.text_of(model.bos),
            eos=model.text_of(model.eos),
            vocab_type=model.vocab_type,
            n_vocab=model.n_vocab,
            n_ctx_train=model.n_ctx_train,
            n_embd=model.header.number("embedding_length"),
            on_gpus=1.0 if given < 0 else min(1.0, given / all_layers),
        )


_STAY = {"gpu_fault", "corpus", "unusable", "single", "left"}  # fields that do not depend on the device
"""What moves: settings, model, context, exactness, draft_model, draft_context, shared, configuration, knowledge, store,
self_check, cache_key, heads."""
_MOST_SHOWN = 8  # widest pass whose cost is shown


@dataclass(slots=True)
class Loaded:
    """Models and contexts in memory; the holder closes it."""

    settings: EngineSettings
    model: Model
    context: Context
    exactness: str  # in words: the configuration in use, and whether its passes are exact
    draft_model: Model | None = None
    draft_context: Context | None = None
    shared: SharedVocabulary | None = None  # what target and draft model have in common, where their tokenizers differ
    configuration: str = ""  # in words: how the target's cache is kept, and whose kernels compute its passes
    knowledge: Knowledge = field(default_factory=Knowledge)  # of costs, and how often drafts are right
    store: KnowledgeStore | None = None  # where it is kept; None = nowhere
    self_check: SelfCheck | None = None  # of our kernels, where they serve the target
    gpu_fault: str = ""  # why the CPU serves although a GPU was to, now or at an earlier start; "" = nothing
    cache_key: bytes = b""  # names what the bits of the target's cache depend on; empty = caches are not kept
    corpus: Corpus | None = None  # past answers that are searched, and where new ones go
    unusable: dict[str, str] = field(default_factory=dict)  # packages' drafters that cannot be made: why
    single: str = ""  # why there is no second slot although it was wished for, in words; "" = nothing speaks against it
    heads: list[Head] = field(default_factory=list)  # trained for this target; its context keeps the states they read
    left: list[Model] = field(default_factory=list)  # targets on devices that failed: their vocabularies may be in use

    @property
    def pass_seconds(self) -> dict[int, dict[int, float]]:
        """{cached length: {width: seconds of a pass}} at a short, a middle and a long use of the context."""
        costs, most = self.knowledge.costs, min(_MOST_SHOWN, self.knowledge.costs.widest)
        lengths = sorted({max(1, self.context.n_ctx * share // 32) for share in (1, 12, 28)})
        found = {n: {width: costs.seconds(width, n) for width in range(1, 1 + most)} for n in lengths}
        return found if costs.known else {}

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the drafters that are models or heads in memory, which `drop` frees."""
        draft = (DraftModel.NAME,) if self.draft_context is not None else ()
        return (*draft, *(head.name for head in self.heads))

    def drop(self, name: str) -> None:
        """Frees the draft model or the head of that name, if there is one; the target goes on without it."""
        if name == DraftModel.NAME:
            for part in (self.draft_context, self.draft_model):
                if part is not None:
                    part.close()
            self.draft_context = self.draft_model = None
        for head in [head for head in self.heads if head.name == name]:
            head.close()
            self.heads = [other for other in self.heads if other is not head]
            self.context.tap_only(union(other.tap for other in self.heads))

    def move(self, other: Loaded) -> None:
        """Takes over what was loaded elsewhere in place of all this, and frees this but for the target."""
        self.save_knowledge()
        parts = (*self.heads, self.draft_context, self.draft_model, self.context)
        self.left.append(self.model)
        for one in fields(self):  # first, because other threads look at them
            if one.name not in _STAY:
                setattr(self, one.name, getattr(other, one.name))
        for part in parts:
            if part is not None:
                part.close()

    def save_knowledge(self) -> None:
        model = self.model
        if self.store is not None:
            self.store.write(self.knowledge)
            if (model.gpu_layers or integrated_gpus(gpus())) and not isinstance(self.context, ConstantWidth):
                costs.write_passes(self.settings, self.knowledge.costs, model.gpu_layers, model.device, model.spread)

    def close(self) -> None:
        if self.corpus is not None:
            self.corpus.close()
        for part in (*self.heads, self.draft_context, self.draft_model, self.context, self.model, *self.left):
            if part is not None:
                part.close()
