"""Settings of an engine, each with its own line of doc. Faces build one from their options; nothing else reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from localspec.errors import UsageError
from localspec.types import Rule

Exactness = Literal["auto", "strict", "off"]
LONGEST_DRAFT, LONGEST_OF_SEVERAL = 7, 4
"""Of the plan's own choice, with one slot and with several: passes of 8 rows are the widest that are probed unless
asked otherwise, and what speculation may spend shrinks as slots fill up."""
FIXED_DRAFT = 4
"""Draft length for the rules whose plan is fixed, unless a length is given."""
RULES: dict[str, Rule] = {"coupled": Rule.COUPLED, "rejection": Rule.REJECTION, "block": Rule.BLOCK}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything that is fixed when the models are loaded."""

    target: Path
    """GGUF file whose text is emitted."""
    draft: Path | None = None
    """GGUF file of a smaller model with the same tokenizer; None = no draft model."""
    drafter: str = "auto"
    """Who guesses: a name of `localspec.drafters.NAMES`. With any but `auto` it drafts in every pass, paying or not."""
    max_draft_tokens: int | None = None
    """Longest draft a pass, drafted in every pass, paying or not; 0 is plain decoding. None = what pays."""
    branches: int = 1
    """Guesses of the draft model per position; 2 or more make its drafts trees (one slot only)."""
    min_ngram: int = 2
    """Shortest n-gram prompt lookup searches for."""
    max_ngram: int = 5
    """Longest n-gram prompt lookup searches for."""
    verify_rule: Rule = Rule.COUPLED
    """How drafts are verified; only *coupled* keeps the text of plain decoding."""
    exact: Exactness = "auto"
    """`strict`: only configurations and widths whose bits equal plain decoding; `auto`: those if they cost at most
    10 %; `off`: the fastest."""
    context: int | None = None
    """Tokens a slot can hold; None = what the model was trained for, at most 4,096."""
    slots: int = 1
    """Requests served at once."""
    wide: bool = True
    """Use localspec's own kernels for passes of several rows where they win; measured once and remembered."""
    threads: int | None = None
    """CPU threads; None = the physical cores this process may use. The count changes the bits of a text."""
    gpu_layers: int = 0
    """Layers of the target on the GPU; -1 = all. Needs a llama-cpp-python built for that GPU."""
    device: str | None = None
    """llama.cpp device for the target, such as CUDA0; None = llama.cpp's choice."""
    draft_gpu_layers: int = 0
    """Layers of the draft model on the GPU; -1 = all."""
    draft_device: str | None = None
    """llama.cpp device for the draft model; None = llama.cpp's choice."""

    def __post_init__(self) -> None:
        if self.exact not in get_args(Exactness):
            raise UsageError(f"exact is {self.exact!r}; it must be auto, strict or off.")
        if self.max_draft_tokens is not None and not 0 <= self.max_draft_tokens <= 64:
            raise UsageError(f"max_draft_tokens is {self.max_draft_tokens}; it must be between 0 and 64.")
        if not 1 <= self.slots <= 64:
            raise UsageError(f"slots is {self.slots}; it must be between 1 and 64.")
        if self.branches > 1 and self.slots > 1:
            raise UsageError(f"branches is {self.branches} with {self.slots} slots; trees need one slot.")
        if self.branches > 1 and self.verify_rule is Rule.BLOCK:
            raise UsageError(f"branches is {self.branches} with the rule block, which verifies chains only.")
        if self.threads is not None and not 1 <= self.threads <= 512:
            raise UsageError(f"threads is {self.threads}; it must be between 1 and 512.")
        if self.context is not None and self.context < 16:
            raise UsageError(f"context is {self.context}; it must be 16 or more.")
        if self.gpu_layers < -1 or self.draft_gpu_layers < -1:
            raise UsageError("gpu_layers must be -1 (all), 0 (none) or more.")

    @property
    def longest_draft(self) -> int:
        """Most nodes a draft can have."""
        if self.max_draft_tokens is not None:
            return self.max_draft_tokens
        return LONGEST_DRAFT if self.slots == 1 else LONGEST_OF_SEVERAL
