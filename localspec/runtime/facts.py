"""What is known of models in memory and does not change, in values that can be sent to another process as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.chat.prompt.template import ChatTemplate
    from localspec.runtime.loaded import Loaded


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Of one target, with what drafts for it."""

    target: str
    """Path of its file."""
    draft: str | None
    """The draft model's; None = there is none."""
    heads: dict[str, str]
    """Paths of heads by their names."""
    slots: int
    """Requests at once."""
    context: int
    """Tokens a conversation may have."""
    exactness: str
    """In words: the configuration in use, and whether its passes are exact."""
    configuration: str
    """In words: how the target's cache is kept, and whose kernels compute its passes."""
    speculative: dict[str, Any]
    """Of the settings: drafter, max_draft_tokens, verify_rule, exact."""
    wide: bool
    """Whether kernels of our own may be used."""
    template: str
    """Its chat template; "" = it has none of its own."""
    completes: bool
    """No chat template goes with it."""
    channels: bool
    """It says what it thinks and what it answers in channels."""
    fills_in: bool
    """It has tokens to fill in a gap with."""
    bos: str
    eos: str
    """Texts of its first and last token; "" = there is none."""
    vocab_type: int
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    on_gpus: float
    """Share of its layers."""
    layers: tuple[str, ...] = ()
    """What of it runs where, in words; nothing on a machine without a GPU."""

    def json(self) -> dict[str, Any]:
        """For `of_json`."""
        return asdict(self)

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> ModelFacts:
        """Raises: TypeError, these are none."""
        return cls(**told | {"layers": tuple(told["layers"])})

    @classmethod
    def of(cls, loaded: Loaded, template: ChatTemplate) -> ModelFacts:
        """Without `layers`."""
        from localspec.runtime.memory.placement import number  # who only reads facts needs none of it

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
