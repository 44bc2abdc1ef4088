"""Settings of an engine, each with its own line of doc. Faces build one from their options; nothing else reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from localspec.errors import UsageError
from localspec.options import Rule
from localspec.settings import MOST, check, declared

Exactness = Literal["auto", "strict", "off"]
KernelChoice = Literal["auto", "wide", "repacked", "plain"]
CacheChoice = Literal["auto", "f16", "bf16", "q8_0", "unfused"]
CorpusChoice = Literal["auto", "on", "off"]
SplitMode = Literal["layer", "row", "tensor", "none"]
GpuLayers = int | Literal["auto"]  # layers on a GPU: -1 = all; "auto" = as many as fit
_LAYERS = {-1: "all", 0: "none"}
LONGEST_DRAFT, LONGEST_COSTLY, LONGEST_OF_SEVERAL = 15, 7, 4
"""Of the plan's own choice: a chain of a drafter that costs nothing (text that is copied), other drafts, and with
several slots, where what speculation may spend shrinks as they fill up."""
FIXED_DRAFT = 4  # draft length for the rules whose plan is fixed, unless a length is given
RULES: dict[str, Rule] = {"coupled": Rule.COUPLED, "rejection": Rule.REJECTION, "block": Rule.BLOCK}

PLANNED = ("context", "slots", "rollback", "branches", "max_draft_tokens", "override_tensor", "cpu_moe")
"""Settings of an engine that are those of a memory plan (`models.fit.FitSettings`), too."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything that is fixed when the models are loaded."""

    target: Path
    """GGUF file whose text is emitted."""
    draft: Path | None = None
    """GGUF file of a smaller model with the same tokenizer (see `cross_tokenizer`); None = no draft model."""
    heads: tuple[Path, ...] = ()
    """Trained heads of this target (EAGLE, EAGLE-3, MTP, Medusa, MLP speculator, PARD), a file or folder each."""
    cross_tokenizer: bool = declared(
        False, help="let a draft model with another tokenizer draft, over the tokens that both have"
    )
    """Let a draft model with another tokenizer draft, over the tokens whose text both vocabularies have."""
    drafter: str = "auto"
    """Who guesses: a name of `localspec.drafters.NAMES`, an installed package's drafter, or `package.module:Class` (see
    `drafters.plugin`). With any but `auto` it drafts in every pass, paying or not."""
    max_draft_tokens: int | None = declared(
        None, least=0, most=64, help="drafts of N in every pass, paying or not; default: what pays"
    )
    """Longest draft a pass, drafted in every pass, paying or not; 0 is plain decoding. None = what pays."""
    draft_cap: int | None = declared(
        None,
        least=1,
        most=64,
        help="drafts of at most N where they pay; default: 15 (a draft model, or --branches: 7; several slots: 4)",
    )
    """Longest draft the plan may choose by itself; None = 15, of a draft model or with `branches` 7, with several slots
    4."""
    rollback: int | None = declared(
        None,
        least=1,
        most=64,
        help="longest draft for a model with recurrent layers, each of N states in memory; default: 1 to 4",
    )
    """Longest draft for a model with recurrent layers: llama.cpp keeps so many of its states besides the last. None =
    1 to 4, as memory has it (see `models.rollback`)."""
    branches: int = declared(1, least=1, most=64, help="guesses per position: 2 or more make drafts trees; default: 1")
    """Guesses per position of the draft model and of habits; 2 or more make drafts trees, those of suffix
    decoding, too (one slot only)."""
    min_ngram: int = declared(2, least=1, most=32, help="shortest n-gram of prompt lookup; default: 2")
    """Shortest n-gram prompt lookup searches for."""
    max_ngram: int = declared(5, least=1, most=32, help="longest n-gram of prompt lookup; default: 5")
    """Longest n-gram prompt lookup searches for."""
    verify_rule: Rule = Rule.COUPLED
    """How drafts are verified; only *coupled* keeps the text of plain decoding."""
    exact: Exactness = declared(
        "auto", help="auto (default): bit-exact where that is proved; strict: in any case; off: nothing is claimed"
    )
    """`auto`: exact wherever that follows from how the model is computed; `strict`: exact in any case, which may need
    an examination of minutes; `off`: nothing is claimed."""
    context: int | None = declared(None, least=16, most=MOST, help="tokens a conversation can hold")
    """Tokens a slot can hold; None = by files and memory, see `models.context_length`."""
    slots: int = declared(1, least=1, most=64, help="requests served at once; default: 1")
    """Requests served at once."""
    second_slot: bool = False
    """With one slot, a second one where it costs the first nothing (see `runtime.placement.objection`), so that a short
    answer need not wait for a long one. All else is as with one slot."""
    wide: bool = declared(True, help="llama.cpp's kernels alone, not localspec's")
    """Use localspec's own kernels for models on the CPU."""
    kernels: KernelChoice = declared(
        "auto", help="wide, repacked or plain; default: auto, wide on a CPU", symbol="NAME"
    )
    """Whose kernels compute the target's passes on the CPU: our own ("wide"), llama.cpp's with weights reordered for
    speed ("repacked") or as they are in the file ("plain"); `auto` = our own where they can be used."""
    cache: CacheChoice = declared(
        "auto", help="of keys and values: f16, bf16, q8_0 or unfused; default: f16", symbol="FORMAT"
    )
    """How keys and values are kept: a number format (with `bf16` the keys stay f16), or f16 without fused attention
    ("unfused"). `auto` = f16."""
    threads: int | None = declared(None, least=1, most=512, help="CPU threads; default: one a physical core")
    """CPU threads; None = the physical cores this process may use. With llama.cpp's own kernels the count
    changes the bits of a text; with ours a pass has fewer beside busy programs."""
    gpu_layers: GpuLayers = declared(
        "auto",
        least=-1,
        most=MOST,
        special=_LAYERS,
        help="layers of the target on the GPU, -1 all; default: auto, as many as fit",
    )
    """Layers of the target on the GPU; -1 = all. `auto` = as many as its whole memory holds, on GPUs that are worth it
    (see `models.gpu`). Needs a llama-cpp-python built for that GPU."""
    device: str | None = declared(
        None, help="device of the target, such as CUDA0, or several: CUDA0=3,CUDA1=1", symbol="NAME"
    )
    """llama.cpp device for the target, such as CUDA0, or several with commas, which share the layers by free memory, or
    by parts (CUDA0=3,CUDA1=1); None = the GPUs that are worth it."""
    split_mode: SplitMode = declared(
        "layer", help="how several GPUs share the target: layer (default), row, tensor; none: one GPU has all"
    )
    """How several GPUs share the target: whole layers, rows of each matrix, parts of each layer ("tensor"), or one GPU
    has all ("none"); the middle two only where llama.cpp's backend and the architecture have them."""
    main_gpu: int = declared(
        0, least=0, most=MOST, help="the GPU that has all with --split-mode none, from 0; default: 0"
    )
    """The GPU that has all with `split_mode` none: its place among the devices, from 0."""
    override_tensor: str | None = declared(
        None,
        help="tensors of the target that go to a device of their own, several with commas: ffn_.*_exps=CPU",
        symbol="REGEX=DEVICE",
    )
    """Tensors of the target that go to a device of their own: REGEX=DEVICE, several with commas; the first that fits a
    tensor's name counts. None = all go with their layers."""
    cpu_moe: int = declared(
        0,
        least=-1,
        most=MOST,
        special=_LAYERS,
        help="layers of the target, from the first, whose experts stay on the CPU, -1 all; default: 0",
    )
    """Layers of the target, from the first, whose experts stay on the CPU; -1 = all. For mixtures of experts that are
    larger than the GPU's memory."""
    draft_gpu_layers: GpuLayers = declared(
        "auto", least=-1, most=MOST, special=_LAYERS, help="the same for the draft model"
    )
    """Layers of the draft model on the GPU; -1 = all. `auto` = all, if those of the target leave room there."""
    draft_device: str | None = declared(None, help="device of the draft model", symbol="NAME")
    """llama.cpp device for the draft model; None = those of the target."""
    rpc: str | None = declared(
        None,
        help="HOST:PORT of llama.cpp's rpc-server on other machines, with commas; their devices count as GPUs",
        symbol="SERVERS",
    )
    """Other machines whose devices may have layers: HOST:PORT of llama.cpp's rpc-server, several with commas. Needs a
    llama-cpp-python built with RPC. What goes there is neither encrypted nor protected by a key."""
    chat_cache_gb: float = declared(
        4.0,
        least=0,
        most=1e6,
        help="disk for the KV caches of chats, which spare reading a chat anew; 0: none are kept; default: 4",
        symbol="GB",
    )
    """Disk for the KV caches of chats that are not in memory, in units of 10^9 bytes: a chat that goes on is then not
    read anew. Those not used for longest make room; 0 = none are kept."""
    prompt_cache_gb: float = declared(0.0, least=0, most=1e6)
    """Disk for the KV caches of long prompts that come again, of any client and slot, in units of 10^9 bytes: they are
    not read anew, even after a restart. Those not used for longest make room; 0 = none are kept."""

    corpus: CorpusChoice = "auto"
    """Whether answers are kept on disk (as tokens, readable by you alone) and searched when drafting, see `localspec
    corpus`; `auto`: the terminal chat does, which keeps its chats anyway, nothing else does."""
    corpus_mb: float = declared(
        16.0, least=0.1, most=1000, help="disk for them, per tokenizer; default: 16", symbol="MB"
    )
    """Disk for the corpus of one tokenizer, in units of 10^6 bytes, 4 a token, and five times as much memory; what was
    of no use for longest makes room. A file that others gave more is not cut by this: so much of it is kept in memory,
    after a start that takes as much as the whole file; `localspec corpus trim` cuts it."""

    def __post_init__(self) -> None:
        if self.exact not in get_args(Exactness):
            raise UsageError(f"exact is {self.exact!r}; it must be auto, strict or off.")
        choices = {"kernels": KernelChoice, "cache": CacheChoice, "corpus": CorpusChoice, "split_mode": SplitMode}
        for name, words in choices.items():
            if getattr(self, name) not in get_args(words):
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(get_args(words))}.")
        if self.kernels == "wide" and not self.wide:
            raise UsageError("kernels is wide, but wide is off.", "Leave one of the two out.")
        check(self)
        if self.branches > 1 and self.slots > 1:
            raise UsageError(f"branches is {self.branches} with {self.slots} slots; trees need one slot.")
        if self.branches > 1 and self.verify_rule is Rule.BLOCK:
            raise UsageError(f"branches is {self.branches} with the rule block, which verifies chains only.")
        if self.main_gpu and self.split_mode != "none":
            raise UsageError(f"main_gpu is {self.main_gpu}, which needs split_mode none.")
        for name in ("gpu_layers", "draft_gpu_layers"):
            layers = getattr(self, name)
            if layers != "auto" and not isinstance(layers, int):
                raise UsageError(f"{name} is {layers!r}; it must be auto, -1 (all), 0 (none) or more.")

    @property
    def longest_draft(self) -> int:
        if self.max_draft_tokens is not None:
            return self.max_draft_tokens
        if self.draft_cap is not None:
            return self.draft_cap
        if self.slots > 1:
            return LONGEST_OF_SEVERAL
        return LONGEST_DRAFT if self.branches == 1 else LONGEST_COSTLY

    @property
    def longest_costly(self) -> int:
        """Most nodes of a draft whose drafter costs something."""
        chosen = self.max_draft_tokens is None and self.draft_cap is None
        return min(self.longest_draft, LONGEST_COSTLY) if chosen else self.longest_draft
