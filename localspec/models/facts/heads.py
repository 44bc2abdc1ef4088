"""What a file is as a drafter: a whole model, or a head trained for one target, as its header declares it.

Declarations read here: the architecture (`eagle3`, `dflash`, `gemma4-assistant`), `nextn_predict_layers` with the
`nextn` tensors of multi-token prediction, and for PARD, which has no GGUF convention, the model's own name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import PairError
from localspec.gguf import ROLLS_BACK, Header, read_parts
from localspec.methods import FROM_FILES, ROWS, TABLE, Gguf, Method

TARGET_SHA256 = "localspec.target_sha256"
"""Metadata of a head as GGUF: sha256 of the target's file it was trained for."""
_ENCODERS = re.compile(r"(?:^|-)(?:bert|t5encoder)|bert$|embedding$")
_STATE_KEYS = ("ssm.conv_kernel", "ssm.state_size", "wkv.head_size", "shortconv.l_cache", "kda.head_dim")
_FORKED = frozenset({"dflash-draft", "gemma4-dflash-draft", "dspark"})
"""Architectures that forks wrote before llama.cpp read such heads; their tensors have other names."""


@dataclass(frozen=True, slots=True)
class DraftKind:
    """What a file can be used for in a pair."""

    method: str
    """One of `methods.FROM_FILES`, or what else the file is."""
    sentence: str
    """The same in words, with an article."""
    drafts: bool = True
    """Whether it can be the draft of a pair at all."""
    is_head: bool = False
    """Whether it works only on the hidden states of the target it was trained for."""


def draft_kind(header: Header) -> DraftKind:
    architecture, kind = header.architecture, header.text("general.type")
    if architecture == "clip" or kind == "mmproj":
        return DraftKind("projector", "an image projector (mmproj)", drafts=False)
    if kind == "adapter":
        return DraftKind("adapter", "a LoRA adapter", drafts=False)
    if not architecture:
        return DraftKind("unknown", "a file without an architecture", drafts=False)
    if architecture in _FORKED:
        return DraftKind("forked", f"a head in the format of a fork of llama.cpp ({architecture})", is_head=True)
    fitting = [row for row in TABLE if row.gguf is not None and _fits(header, row.gguf)]
    if head := next((row for row in fitting if not row.whole), None):
        return _kind_of(head, architecture)
    if header.flag(f"{architecture}.attention.causal") is False or _ENCODERS.search(architecture):
        return DraftKind("embedding", f"an embedding model ({architecture})", drafts=False)
    return _kind_of(next(iter(fitting), ROWS["draft"]), architecture)


def _fits(header: Header, known: Gguf) -> bool:
    names = [header.text(f"general.{key}") for key in ("name", "basename", "finetune")]
    return (
        (not known.architecture or re.fullmatch(known.architecture, header.architecture) is not None)
        and (not known.tensor or any(known.tensor in tensor.name for tensor in header.tensors))
        and (not known.nextn or _only_nextn(header))
        and (not known.called or any(re.search(known.called, name) for name in names))
    )


def _kind_of(row: Method, architecture: str) -> DraftKind:
    """`architecture`: of the file, which is named where the method has several."""
    several = row.gguf is not None and row.gguf.architecture not in ("", architecture)
    return DraftKind(row.name, row.sentence + (f" ({architecture})" if several else ""), is_head=not row.whole)


def check_supported(path: Path, kind: DraftKind) -> None:
    """Refuses what localspec cannot draft with.

    Raises:
        PairError: it is no drafter at all, or a head of a kind for which there is no drafter.
    """
    if not kind.drafts:
        raise PairError(f"{path.name} cannot draft: it is {kind.sentence}.")
    if kind.method not in FROM_FILES:
        raise PairError(
            f"{path.name} is {kind.sentence}, which localspec cannot draft with yet.",
            "Name a whole draft model, or none: prompt lookup needs no draft.",
        )


def check_target(header: Header) -> None:
    """Refuses as a target what is no whole model, over which llama.cpp would end the process.

    Raises:
        PairError: it is a head, or no language model.
    """
    kind = draft_kind(header)
    if kind.is_head or not kind.drafts:
        hint = "Give it with --head, beside the model it was trained for." if kind.is_head else ""
        raise PairError(f"{header.path.name} cannot be a target: it is {kind.sentence}.", hint)


def trained_for(header: Header) -> str:
    """sha256 of the target's file, where a head says it; "" where not."""
    return header.text(TARGET_SHA256)


def reads(header: Header) -> str:
    """What a head in a GGUF file takes from its target, in words; "" where the file does not list layers."""
    own = f"{header.architecture}."
    layers = [str(layer) for layer in header.array(f"{own}target_layers")]
    if not layers:
        return ""
    held = {tensor.name for tensor in header.tensors}
    tables = {"token_embd.weight": "embeddings", "output.weight": "output matrix"}
    shared = [words for name, words in tables.items() if name not in held]
    rows, window = header.number("block_size"), header.number("attention.sliding_window")
    words = [
        f"what goes into layers {', '.join(layers)} of its target",
        *([f"its {' and '.join(shared)}"] if shared else []),
        *([f"in blocks of {rows} tokens"] if rows > 0 else []),
        *([f"with a window of {window} tokens"] if window > 0 else []),
        *(["each token sees only those before it"] if header.flag(f"{own}attention.causal") else []),
    ]
    return ", ".join(words)


def nextn_layers(header: Header | Sequence[Header]) -> int:
    """Multi-token-prediction layers that a whole model carries inside its own files. Of one header the other files are
    read where it says that there are some."""
    first = header if isinstance(header, Header) else header[0]
    count = first.number("nextn_predict_layers")
    if count <= 0:
        return 0
    parts = [header] if isinstance(header, Header) else header
    if isinstance(header, Header) and not _predicts(header):
        parts = read_parts(header.path)
    return count if any(map(_predicts, parts)) else 0


def _predicts(part: Header) -> bool:
    return any(".nextn." in tensor.name for tensor in part.tensors)


def _only_nextn(header: Header) -> bool:
    """Whether the file holds the multi-token-prediction layers and not the model they belong to."""
    if not _predicts(header):
        return False
    layers = {found[1] for tensor in header.tensors if (found := re.match(r"blk\.(\d+)\.", tensor.name))}
    return "0" not in layers and len(layers) <= header.number("nextn_predict_layers")


def keeps_state(header: Header) -> bool:
    """Whether some layers are recurrent: the end of such a cache cannot be dropped, which drafting needs."""
    return any(header.real(key) or header.array(f"{header.architecture}.{key}") for key in _STATE_KEYS)


def keeps_guesses(header: Header) -> bool:
    """Whether rejected tokens cannot be dropped from its cache: it keeps a recurrent state, and llama.cpp no snapshots
    of it."""
    return keeps_state(header) and header.architecture not in ROLLS_BACK


def check_forgets(target: Header) -> None:
    """
    Raises:
        PairError: tokens that the target rejects cannot be dropped from its cache.
    """
    if keeps_guesses(target):
        raise PairError(
            f"{target.path.name} keeps a recurrent state ({target.architecture}), from which rejected tokens cannot be"
            " dropped.",
            "It answers without drafts.",
        )


def check_head(kind: DraftKind, target: Header, head: Header) -> tuple[str, str, str] | None:
    """Whether a head's sizes are those of the target it should sit on.

    Returns:
        None, or (fact, in the target, in the head) of the first that differ.
    """
    needs = ROWS[kind.method].needs if kind.method in ROWS else ""
    wanted = head.number("target_hidden_size")
    if needs == "all inputs" and not wanted:
        return "hidden size", str(target.number("embedding_length")), "not stated"
    if not wanted and needs in ("inputs", "own layers", "cache"):
        wanted = head.number("embedding_length_out") or head.number("embedding_length")
    width = target.number("embedding_length")
    if wanted and width and wanted != width:
        return "hidden size", str(width), str(wanted)
    layers = [layer for layer in head.array(f"{head.architecture}.target_layers") if isinstance(layer, int)]
    most = max(layers, default=0) + (needs == "inputs")  # EAGLE-3 may read what follows the last layer
    if layers and most > target.n_layers:
        return "number of layers", str(target.n_layers), f"made for one with at least {most}"
    return None
