"""What a file is as a drafter: a whole model, or a head trained for one target, in a GGUF file or as published.

A GGUF file declares it by its architecture (`eagle3`, `dflash`, `gemma4-assistant`), by `nextn_predict_layers` with the
`nextn` tensors of multi-token prediction, or for PARD, which has no GGUF convention, by the model's own name.

Authors publish a folder with config.json and weights, or a weights file of such. The package safetensors checks such a
file and says where its tensors lie; torch alone reads its pickles. numpy reads the tensors there: the package gives it
no BF16 and no F8, which most heads are published in. Numbers may be in F32, F16, BF16, F8_E4M3 or, with the scale of a
row beside them as compressed-tensors writes it (`<name>_scale`), I8. Nothing is read before it is asked for, and of
large matrices a part at a time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.errors import LocalspecError, ModelFileError, PairError, explained, reason
from localspec.gguf import DOWNLOAD_AGAIN, ROLLS_BACK, Header, read_header, read_parts
from localspec.methods import FROM_FILES, ROWS, TABLE, Gguf
from localspec.types import Float32Array

if TYPE_CHECKING:
    from localspec.native.library import Int8Matrix

TARGET_SHA256 = "localspec.target_sha256"  # metadata of a head as GGUF: sha256 of the target's file it was trained for
_ENCODERS = re.compile(r"(?:^|-)(?:bert|t5encoder)|bert$|embedding$")
_STATE_KEYS = ("ssm.conv_kernel", "ssm.state_size", "wkv.head_size", "shortconv.l_cache", "kda.head_dim")
_FORKED = frozenset({"dflash-draft", "gemma4-dflash-draft", "dspark"})  # of forks, before llama.cpp read such heads


@dataclass(frozen=True, slots=True)
class DraftKind:
    method: str  # one of `methods.FROM_FILES`, or what else the file is
    sentence: str  # the same in words, with an article
    drafts: bool = True  # whether it can be the draft of a pair at all
    is_head: bool = False  # whether it works only on the hidden states of the target it was trained for


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
    names = [header.text(f"general.{key}") for key in ("name", "basename", "finetune")]

    def fits(known: Gguf) -> bool:
        return (
            (not known.architecture or re.fullmatch(known.architecture, architecture) is not None)
            and (not known.tensor or any(known.tensor in tensor.name for tensor in header.tensors))
            and (not known.nextn or _only_nextn(header))
            and (not known.called or any(re.search(known.called, name) for name in names))
        )

    fitting = [row for row in TABLE if row.gguf is not None and fits(row.gguf)]
    row = next((row for row in fitting if not row.whole), None)
    if row is None:
        if header.flag(f"{architecture}.attention.causal") is False or _ENCODERS.search(architecture):
            return DraftKind("embedding", f"an embedding model ({architecture})", drafts=False)
        row = next(iter(fitting), ROWS["draft"])
    several = row.gguf is not None and row.gguf.architecture not in ("", architecture)  # then the file's own is named
    return DraftKind(row.name, row.sentence + (f" ({architecture})" if several else ""), is_head=not row.whole)


def check_supported(path: Path, kind: DraftKind) -> None:
    """Raises PairError: it is no drafter at all, or a head of a kind for which there is no drafter."""
    if not kind.drafts:
        raise PairError(f"{path.name} cannot draft: it is {kind.sentence}.")
    if kind.method not in FROM_FILES:
        text = f"{path.name} is {kind.sentence}, which localspec cannot draft with yet."
        raise PairError(text, "Name a whole draft model, or none: prompt lookup needs no draft.")


def check_target(header: Header) -> None:
    """Raises PairError: it is no whole model, over which llama.cpp would end the process."""
    kind = draft_kind(header)
    if kind.is_head or not kind.drafts:
        hint = "Give it with --head, beside the model it was trained for." if kind.is_head else ""
        raise PairError(f"{header.path.name} cannot be a target: it is {kind.sentence}.", hint)


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
    parts = [header] if isinstance(header, Header) else header
    count = max(0, parts[0].number("nextn_predict_layers"))
    if count and isinstance(header, Header) and not _predicts(header):
        parts = read_parts(header.path)
    return count if any(map(_predicts, parts)) else 0


def _predicts(part: Header) -> bool:
    return any(".nextn." in tensor.name for tensor in part.tensors)


def _only_nextn(header: Header) -> bool:
    """Whether it holds the multi-token-prediction layers and not the model they belong to."""
    if not _predicts(header):
        return False
    layers = {found[1] for tensor in header.tensors if (found := re.match(r"blk\.(\d+)\.", tensor.name))}
    return "0" not in layers and len(layers) <= header.number("nextn_predict_layers")


def keeps_state(header: Header) -> bool:
    """Whether some layers are recurrent, so that the end of a cache cannot be dropped."""
    return any(header.real(key) or header.array(f"{header.architecture}.{key}") for key in _STATE_KEYS)


def keeps_guesses(header: Header) -> bool:
    """Whether rejected tokens cannot be dropped: it keeps a recurrent state, and llama.cpp no snapshots of it."""
    return keeps_state(header) and header.architecture not in ROLLS_BACK


def check_forgets(target: Header) -> None:
    """Raises PairError: tokens that the target rejects cannot be dropped from its cache."""
    if keeps_guesses(target):
        state = f"{target.path.name} keeps a recurrent state ({target.architecture})"
        raise PairError(f"{state}, from which rejected tokens cannot be dropped.", "It answers without drafts.")


def check_head(kind: DraftKind, target: Header, head: Header) -> tuple[str, str, str] | None:
    """(fact, in the target, in the head) of the first size in which a head differs from its target; None = none."""
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


def opened(path: Path) -> Any:
    """The package's `safe_open`, which maps the file. Raises ModelFileError: missing, truncated or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        text = f"{path.name} is truncated, or no safetensors file: {reason(error)}."
        raise ModelFileError(text, DOWNLOAD_AGAIN) from None


def save(path: Path, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, str] | None = None) -> None:
    """Writes a file, whole or not at all; what is there is replaced. The package writes it beside, for its owner alone,
    and renames it. Mapped arrays are never in memory as a whole; `facts` go into the header's `__metadata__`. Raises
    LocalspecError: the disk is full or read-only."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # it takes others as they lie
    try:
        save_file(dense, path, dict(facts or {}))
        path.chmod(paths.new_mode())
    except (OSError, SafetensorError) as error:
        raise LocalspecError(f"{path} cannot be written: {reason(error)}.") from None


_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
_KNOWN = ("model", "pytorch_model")  # how names of weights files begin
_BESIDE_MODEL = "medusa_lm_head"  # heads' own, beside the whole model they were trained for
_OF_TRAINING = ("training_args", "optimizer", "scheduler", "rng_state")  # what trainers leave beside them


def is_checkpoint(path: Path) -> bool:
    """Whether it is in the form in which models are published for Python, as against a GGUF file."""
    return path.is_dir() or path.suffix.lower() in _WEIGHTS


def checkpoint_kind(path: Path) -> DraftKind:
    """What a folder or weights file is as a drafter: by its config.json, else by the names of its tensors."""
    config = config_of(path)
    words = f"{config.get('model_type')} {config.get('architectures')}".lower()
    forms = [(row, row.published) for row in TABLE if row.published]
    found = [row for row, form in forms if form.key in config or any(word in words for word in form.words)]
    if not found:
        names = {name for file in weights_of(path) for name in _names(file)}
        found = [row for row, form in forms if any(re.match(form.tensors, name) for name in names)]
    if not found:
        return DraftKind("unknown", "no head of a kind localspec knows", drafts=False)
    return DraftKind(found[0].name, found[0].sentence, is_head=True)


def config_of(path: Path) -> dict[str, Any]:
    """Of the folder, or beside the weights file; empty without one. Raises ModelFileError: it is no JSON object."""
    place = (path if path.is_dir() else path.parent) / "config.json"
    try:
        found = json.loads(place.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{place} cannot be read: {reason(error)}.") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{place} is no JSON object.")
    return found


def weights_of(path: Path) -> list[Path]:
    """The weights files of a folder, safetensors before others, and those of known names before others; of a file
    itself. The model that Medusa heads lie beside is none of them. Raises ModelFileError: there is none."""
    found = [path] if path.is_file() else []
    for name in (_BESIDE_MODEL, "") if path.is_dir() else ():
        for suffix in _WEIGHTS:
            files = sorted(path.glob(f"{name}*{suffix}"))
            found = found or [file for file in files if not file.name.startswith(_OF_TRAINING)]
    if not found:
        raise ModelFileError(f"{path} is missing, or holds no weights ({', '.join(_WEIGHTS)}).")
    return [file for file in found if file.name.startswith(_KNOWN)] or found


def trained_for(path: Path) -> str:
    """sha256 of the target's file, where a head's file or folder says it; "" where not."""
    if not is_checkpoint(path):
        return read_header(path).text(TARGET_SHA256)
    found = config_of(path).get("target_sha256")
    for file in weights_of(path) if found is None else ():
        if file.suffix.lower() == ".safetensors":
            found = found or (opened(file).metadata() or {}).get("target_sha256")
    return found if isinstance(found, str) else ""


def _names(path: Path) -> set[str]:
    """Names of the tensors in a weights file; of a pickled one every string it holds, none of which is run."""
    if path.suffix.lower() == ".safetensors":
        return set(opened(path).keys())
    import pickletools  # these three are rarely needed
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return {found for _, found, _ in pickletools.genops(archive.read(pickled)) if isinstance(found, str)}
    except (OSError, EOFError, ValueError, RuntimeError, StopIteration, zipfile.BadZipFile, zlib.error) as error:
        raise ModelFileError(f"{path} cannot be read as a file of torch's: {error or 'no data.pkl in it'}.") from None


_SAFE_TORCH = (2, 10)  # older: CVE-2025-32434, CVE-2026-24747 (`weights_only` does not help)
_STORED: dict[str, np.dtype[Any]] = {  # how each number format lies in the file
    "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"), "F8_E4M3": np.dtype("u1"),
    "I8": np.dtype("i1"), "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "BOOL": np.dtype("?"),
}  # fmt: skip


class _Tensor(NamedTuple):
    kind: str  # number format in the file; "" = one of torch's
    shape: tuple[int, ...]
    rows: Callable[[int, int], npt.NDArray[Any]]  # (from, before) as they are stored; torch's floats in F32


class Tensors:
    def __init__(self, path: Path) -> None:
        """Reads the headers of a weights file, or of a folder of them."""
        self.path = path
        self._found: dict[str, _Tensor] = {}
        for file in weights_of(path):
            self._found |= _safetensors(file) if file.suffix.lower() == ".safetensors" else _pickled(file)
        for name, held in self._found.items():  # scales are one for each row of their tensor, or one in all
            if name.endswith("_scale_inv"):
                raise ModelFileError(f"{path.name}: {name} scales a tensor in blocks, which localspec does not read.")
            scaled = self._found.get(name.removesuffix("_scale"), held)
            count, rows = math.prod(held.shape), (*scaled.shape, 1)[0]
            if scaled is not held and count not in (1, rows):
                text = f"{path.name}: {name} has {count} numbers for a tensor of {rows} rows."
                raise ModelFileError(text, DOWNLOAD_AGAIN)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: found.shape for name, found in self._found.items()}

    def need(self, name: str, *shape: int) -> None:
        """Raises ModelFileError: there is no such tensor, or not of this shape."""
        found = self._held(name).shape
        if found != shape:
            raise ModelFileError(f"{self.path.name}: tensor {name} is {list(found)}; {list(shape)} is needed.")

    def stored(self, name: str) -> npt.NDArray[Any]:
        """A tensor of integers as it is."""
        found = self._held(name)
        return found.rows(0, (*found.shape, 1)[0]).reshape(found.shape)

    def array(self, name: str) -> Float32Array:
        shape = self._held(name).shape
        return self._floats(name, 0, (*shape, 1)[0]).reshape(shape)

    def matrix(self, name: str) -> Int8Matrix:
        """A matrix in 8 bits: as it is stored, or rounded."""
        from localspec.native.library import Int8Matrix  # a list of models needs no kernels

        held, scale = self._held(name), f"{name}_scale"
        if held.kind == "I8" and scale in self._found:
            values = self.stored(name)
            scales = np.broadcast_to(self.array(scale).reshape(-1), (len(values),))
            return Int8Matrix(np.ascontiguousarray(values), np.ascontiguousarray(scales))
        return Int8Matrix.in_parts(held.shape, lambda start, stop: self._floats(name, start, stop))

    def _held(self, name: str) -> _Tensor:
        found = self._found.get(name)
        if found is None:
            raise ModelFileError(f"{self.path.name} lacks the tensor {name}.")
        return found

    def _floats(self, name: str, start: int, stop: int) -> Float32Array:
        """Rows of a tensor as they are meant."""
        held, scale = self._held(name), f"{name}_scale"
        found = held.rows(start, stop)
        if held.kind == "BF16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        floats: Float32Array = (_f8_values()[found] if held.kind == "F8_E4M3" else found).astype(np.float32)
        if scale in self._found:
            scales = self.array(scale).reshape(-1)
            floats *= (scales if len(scales) == 1 else scales[start:stop]).reshape(-1, *[1] * (floats.ndim - 1))
        return floats


@cache
def _f8_values() -> Float32Array:
    """What the 256 codes of F8_E4M3 (finite, one NaN a sign) mean."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[code & 127 == 127] = np.nan
    return np.where(code & 128, -size, size).astype(np.float32)


def _safetensors(path: Path) -> dict[str, _Tensor]:
    """The package has checked that its tensors fill a file to the end, without holes."""

    def rows(name: str, kind: str, shape: tuple[int, ...], offset: int, start: int, stop: int) -> npt.NDArray[Any]:
        width, stored = math.prod(shape[1:]), _STORED[kind]
        with explained(f"{path} cannot be read", ModelFileError):
            flat = np.fromfile(path, stored, (stop - start) * width, offset=offset + start * width * stored.itemsize)
        if len(flat) != (stop - start) * width:
            raise ModelFileError(f"{path.name} is truncated at the tensor {name}.", DOWNLOAD_AGAIN)
        return flat.reshape(stop - start, *shape[1:])

    file, found = opened(path), dict[str, _Tensor]()
    end = path.stat().st_size
    for name in reversed(file.offset_keys()):
        lies = file.get_slice(name)
        kind, shape = lies.get_dtype(), tuple(lies.get_shape())
        if kind not in _STORED:
            raise ModelFileError(f"{path.name}: tensor {name} is in {kind}, which localspec does not read.")
        end -= math.prod(shape) * _STORED[kind].itemsize
        found[name] = _Tensor(kind, shape, partial(rows, name, kind, shape, end))
    return found


def _pickled(path: Path) -> dict[str, _Tensor]:
    """The state dictionary in a pickle, mapped and opened by torch without running anything in it."""
    import zipfile

    try:
        torch = import_module("torch")
    except ImportError:
        text = f"{path.name} is a pickle, which only torch reads, and torch is not installed."
        raise ModelFileError(text, "Install torch, or convert the file to safetensors.") from None
    version = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if version is None or tuple(map(int, version.groups())) < _SAFE_TORCH:
        text = f"{path.name} is a pickle, and torch {torch.__version__} can be made to run what is in one."
        hint = f"Install torch {'.'.join(map(str, _SAFE_TORCH))} or newer, or convert the file to safetensors."
        raise ModelFileError(text, hint)

    def rows(tensor: Any, start: int, stop: int) -> npt.NDArray[Any]:
        part = tensor.reshape(tuple(tensor.shape) or 1)[start:stop]
        found: npt.NDArray[Any] = (part.float() if part.is_floating_point() else part).numpy()
        return found

    try:
        tensors = dict[str, _Tensor]()
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        for name, tensor in loaded.items():
            tensors[str(name)] = _Tensor("", tuple(tensor.shape), partial(rows, tensor.detach()))
            tensors[str(name)].rows(0, 0)  # what is no array of numbers says so here
        return tensors
    except Exception as error:  # noqa: BLE001 (torch raises whatever its parts do)
        why = str(error).strip().split("\n")[0][:200]
        raise ModelFileError(f"{path.name} cannot be read as weights of torch's: {why}.", DOWNLOAD_AGAIN) from None
