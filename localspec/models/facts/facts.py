"""What `localspec show` says about a model: everything its header tells, what it costs, and what can draft for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.gguf import Header, bytes_by_type, packs
from localspec.machine import Place, total_ram
from localspec.methods import TABLE
from localspec.models.facts.heads import TARGET_SHA256, draft_kind, keeps_guesses, nextn_layers, reads
from localspec.models.facts.pairing import doubt_of, template_marks, vocabulary
from localspec.models.facts.shape import default_context, shape_of
from localspec.models.memory.fit import FitSettings, plan

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
LANGUAGE_MODEL = "a language model"  # `kind` of what can be a target
_LAYER_INPUTS = frozenset((
    "llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gemma4", "gpt-oss", "nemotron_h", "lfm2",
    "minimax-m2", "deepseek4",
))  # fmt: skip
"""Architectures whose hidden states llama.cpp hands out, which EAGLE-3 needs (those that set `t_layer_inp`)."""


def describe(parts: Sequence[Header], settings: FitSettings, places: Sequence[Place]) -> dict[str, Any]:
    """From the headers of a model's files; the context of the settings adds a length to the table of memory."""
    header, shape = parts[0], shape_of(parts)
    whole, found = any(part.tensors for part in parts), draft_kind(header)
    alone = LANGUAGE_MODEL if whole else "a vocabulary, without weights"
    text, words = header.chat_template, vocabulary(header)
    left, unpacked_words = unpacked(parts)
    tokenizer: dict[str, Any] = {"kind": words.kind, "tokens": words.size, "pre_tokenizer": words.pre}
    tokenizer["merges"] = words.merge_count
    for name, token in (("bos", words.bos), ("eos", words.eos)):
        tokenizer[name] = None if token is None else {"id": token, "text": words.text(token)}
    tokenizer |= {"add_bos": words.add_bos, "add_eos": words.add_eos, "doubt": doubt_of(header)}
    longest, needs = max(0, header.context_length) or CONTEXTS[1], list[dict[str, Any]]()
    lengths = {length for length in CONTEXTS if longest <= 64 * length < 64 * longest} | {min(longest, 1 << 24)}
    lengths |= set() if settings.context is None else {settings.context}
    for length in sorted(lengths) if whole else ():
        made = plan(parts, None, replace(settings, context=length), places)
        cache = sum(share.cache for share in made.shares)
        needs.append({"context": length, "cache_bytes": cache, "total_bytes": made.total_bytes, "fits": made.fits})
    return {
        "name": header.name,
        "file": str(header.path),
        "bytes": sum(part.file_bytes for part in parts),
        "parts": len(parts),
        "gguf_version": header.version,
        "kind": alone if found.method == "draft" else found.sentence,  # what it is in a pair: see `heads.DraftKind`
        "made_for": header.text(TARGET_SHA256),  # sha256 of the file it was trained for, where it is a head and says so
        "reads": reads(header),  # what it takes from its target, where it is a head and says so
        "architecture": header.architecture,
        "parameters": sum(part.parameters for part in parts),
        "layers": shape.n_layers,
        "embedding": shape.embedding,
        "quantisation": header.quantisation,
        "tensor_bytes": bytes_by_type(parts),  # bytes per tensor type, most first
        "unpacked_bytes": left,  # of them, those of matrices that our kernels do not pack (`unpacked`)
        "unpacked": unpacked_words,  # the same in words, with what it costs; "" if all is packed
        "context": shape.train_context,  # tokens it was trained for; 0 = not stated
        "default_context": default_context(shape, total_bytes=total_ram(places)),  # of it alone here, unless it is set
        "licence": header.text("general.license"),
        "tokenizer": tokenizer,
        "template": None if text is None else {"characters": len(text), "marks": sorted(template_marks(text))},
        "memory": needs,  # at several context lengths, nothing but this model loaded
        "methods": _methods(parts) if whole else [],
        "memory_guessed": shape.guessed,
    }


def _methods(parts: Sequence[Header]) -> list[dict[str, Any]]:
    """Which ways to draft fit it, and why or why not."""
    header = parts[0]
    kind = draft_kind(header)
    if not kind.drafts or kind.is_head:
        return [{"name": kind.method, "fits": False, "why": f"it is {kind.sentence}, not a target"}]
    if keeps_guesses(header):
        no = "its recurrent layers cannot take guesses back: nothing is drafted for it"
        drafts = (row.name for row in TABLE if row.needs in ("text", "tokenizer"))
        return [{"name": name, "fits": False, "why": no} for name in drafts]
    found, own = list[dict[str, Any]](), nextn_layers(parts)
    for row in TABLE:
        if row.needs == "grammar" or (row.needs == "cache" and header.architecture != "gemma4"):
            continue  # not spoken of with this model
        lacking = ""
        if row.needs == "own layers" and not own:
            lacking = "the file has no prediction layers"
        elif row.needs in ("inputs", "all inputs") and header.architecture not in _LAYER_INPUTS:
            lacking = f"llama.cpp hands out no hidden states of {header.architecture}"
        why = lacking or row.shown or f"carries {own} layer(s) of its own"
        found.append({"name": row.name, "fits": not lacking, "why": why})
    return found


# Which weights of a model our own kernels do not pack, and what that costs.

COST = "there a pass of 8 rows takes about 5 passes of one row, so drafts gain little"
"""SmolLM2-135M in Q4_1 before that format was packed, 2 cores with AVX2: 4.84 passes."""


def unpacked(parts: Sequence[Header]) -> tuple[dict[str, int], str]:
    """Bytes by format, most first, of the matrices that a pass multiplies with and our kernels do not pack, and a
    sentence about them without its full stop; "" = all are packed. Experts and small float32 matrices are llama.cpp's,
    and not counted."""
    tensors = [tensor for part in parts for tensor in part.tensors]
    looked_up = "token_embd.weight" if any(tensor.name == "output.weight" for tensor in tensors) else ""
    found = [one for one in tensors if len(one.shape) == 2 and one.type != "F32" and one.name != looked_up]
    left: Counter[str] = Counter()
    for one in found:
        if not packs(one.type, *one.shape[:2]):
            left[one.type] += one.size
    if not left:
        return {}, ""
    most = sum(one.size for one in found)
    shares = ", ".join(f"{kind} ({max(1, round(100 * size / most))} %)" for kind, size in left.most_common())
    return dict(left.most_common()), f"localspec's kernels do not pack {shares} of what a pass multiplies: {COST}"
