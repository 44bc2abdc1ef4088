"""A loaded GGUF model: weights, vocabulary facts, tokens and text; and files of weights, unpacked row by row."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.errors import Cancelled, ModelError, ModelFileError, UsageError
from localspec.gguf import TYPE_NUMBERS, Header, Tensor, parts_of, read_header, read_parts
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.llama.exact import wide
from localspec.llama.exact.wide import Kernels
from localspec.llama.library import devices, lib
from localspec.llama.special_tokens import FewestTokens, PromptTokenizer, SpecialToken, breakers, special_tokens
from localspec.machine import give_back
from localspec.types import Breakers, Float32Array, ModelSampling, Prompt, SamplingParams, Tokens

_MOST_LAYERS = 512  # llama.cpp ends the process over a model with more
_STEP = 1 / 16  # share of a model that loads, after which pages of its file are given back


class Model:
    """Weights in memory. Make one with `Model.load`; `close` it, or use it as a context manager."""

    is_head: ClassVar = False  # whether it need not write token after token
    device_lost: ClassVar[bool] = False
    """Whether a GPU's backend threw: freeing what is on GPUs could throw as well, so it stays to the end."""

    def __init__(
        self,
        handle: int,
        header: Header,
        gpu_layers: int,
        kernels: Kernels,
        device: str | None,
        has_nextn: bool = False,
        spread: Spread = BY_LAYER,
    ) -> None:
        self.handle: int | None = handle
        self.header = header
        self.path = header.path
        self.gpu_layers = gpu_layers
        self.kernels = kernels  # who computes its passes on the CPU; its contexts follow it
        self.has_nextn = has_nextn  # whether its multi-token-prediction layers are loaded
        self.device = device
        self.spread = spread
        self._api = api = lib.api()
        self._vocabulary = vocab = api.llama_model_get_vocab(handle)
        self.contexts: dict[int, weakref.ref[Any]] = {}  # open `Handle`s by address, freed before the weights
        self.n_vocab = int(api.llama_vocab_n_tokens(vocab))  # entries of a logits row
        self.vocab_type = int(api.llama_vocab_type(vocab))  # llama.cpp's number: 1 SPM, 2 BPE, 3 WPM, 4 UGM
        ends = (api.llama_vocab_bos, api.llama_vocab_eos, api.llama_vocab_eot)
        self.bos, self.eos, self.eot = (_token_or_none(find(vocab)) for find in ends)
        is_end = api.llama_vocab_is_eog
        self.end_tokens = frozenset(token for token in range(self.n_vocab) if is_end(vocab, token))
        """Every token after which an answer is over."""
        gaps = [api.llama_vocab_fim_pre, api.llama_vocab_fim_suf, api.llama_vocab_fim_mid]
        before, after, middle = (_token_or_none(find(vocab)) for find in gaps)
        self.fill_in = None if before is None or after is None or middle is None else (before, after, middle)
        """Tokens before the text before a gap, before the text after it, and before the middle; None = it has none."""
        self.fill_in_files = tuple(
            _token_or_none(find(vocab)) for find in (api.llama_vocab_fim_rep, api.llama_vocab_fim_sep)
        )  # tokens before the name of a repository and before the name of a file, where it has them; else None
        self.add_bos = bool(api.llama_vocab_get_add_bos(vocab))  # whether plain text should start with `bos`
        self.n_ctx_train = int(api.llama_model_n_ctx_train(handle))  # tokens the model was trained for
        self.can_trim = not (api.llama_model_is_recurrent(handle) or api.llama_model_is_hybrid(handle))
        """Whether the end of its cache can be dropped, which drafting needs."""
        self.chat_template = header.chat_template

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        gpu_layers: int = 0,
        device: str | None = None,
        spread: Spread = BY_LAYER,
        kernels: Kernels = "repacked",
        use_mmap: bool = True,
        nextn: bool = False,
        weights: bool = True,
        progress: Callable[[float], bool] | None = None,
    ) -> Model:
        """Checks the header, then loads the file. Raises ModelFileError: missing, damaged, or not a model that
        generates text; ModelError: "wide", and the library cannot be used here; UsageError: no such device, or an
        override names none of the model's; Cancelled: `progress` said so.

        Args:
            path: a .gguf file (the first part of a split one).
            gpu_layers: layers to put on a GPU; -1 = all.
            device: llama.cpp's names of the only devices to use, with commas, and their parts of the layers, if any
                ("CUDA0", "CUDA0=3,CUDA1=1"); None = all it has, the CPU alone when `gpu_layers` is 0.
            spread: how tensors go to these devices; its mode counts where layers are on a GPU.
            nextn: load multi-token-prediction layers, too, if there are some; plain decoding has no use for them.
            kernels: see `Kernels`; who computes passes of layers on the CPU.
            weights: False = lay it out without memory, to look at the graphs of its passes; it cannot compute.
            progress: called with 0.0 to 1.0; returning False cancels.
        """
        header = check_text_model(path)
        if kernels == "wide" and not wide.available():
            raise ModelError(f"there are no wide kernels here: {wide.status().reason}", "Use --no-wide.")
        api, mark = lib.api(), lib.log.mark()
        params = api.llama_model_default_params()
        params.n_gpu_layers, params.no_alloc = gpu_layers, not weights
        params.use_extra_bufts = kernels != "plain" and not lib.multiplies_with_amx()  # for what wide leaves, too
        params.load_mode = api.LLAMA_LOAD_MODE_AUTO if use_mmap and weights else api.LLAMA_LOAD_MODE_NONE
        parts = read_parts(header.path) if nextn and header.number("nextn_predict_layers") else []
        params.load_mtp = any(".nextn." in tensor.name for part in parts for tensor in part.tensors)
        arrays = devices.put(params, spread, device, gpu_layers)
        watch = _Progress(progress, parts_of(header.path) if kernels != "plain" or gpu_layers else [])
        params.progress_callback = callback = api.llama_progress_callback(watch)
        with wide.packing() if kernels == "wide" else wide.switched(0) as watch.look:
            handle = api.llama_model_load_from_file(str(header.path).encode("utf-8", "surrogateescape"), params)
        del callback, arrays
        if watch.error is not None:
            if handle:
                api.llama_model_free(handle)
            raise watch.error
        if not handle:
            reason = lib.log.reason(mark) or "it gave no reason"
            newer = "Its architecture is newer than this llama.cpp, or is not a language model's."
            hint = newer if "unknown model architecture" in reason else ""
            raise ModelFileError(f"llama.cpp cannot load {header.path}: {reason}.", hint)
        encodes = api.llama_model_has_encoder(handle) or not api.llama_model_has_decoder(handle)
        if not cls.is_head and (encodes or api.llama_model_is_diffusion(handle)):
            api.llama_model_free(handle)
            kind = f"{'an encoder' if encodes else 'a diffusion model'} ({header.architecture})"
            raise ModelFileError(f"{header.path} is {kind}, not a model that writes token after token.")
        return cls(handle, header, gpu_layers, kernels, device, bool(params.load_mtp), spread)

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens:
        """int32[n] tokens of `text`, `bos` first if wanted. `special`: "<|im_end|>" is that token, not characters."""
        data = text.encode("utf-8", "replace")
        tokenize = self._api.llama_tokenize
        room = len(data) + 8
        while True:
            buffer = np.empty(room, dtype=np.int32)
            pointer = ctypes.cast(buffer.ctypes.data, ctypes.POINTER(ctypes.c_int32))
            count = tokenize(self.vocab, data, len(data), pointer, room, False, special)
            if count >= 0:
                return self._with_bos(buffer[:count].copy(), add_bos)
            room = -count

    def _with_bos(self, tokens: Tokens, add_bos: bool) -> Tokens:
        if not add_bos or self.bos is None:
            return tokens
        return np.concatenate([np.array([self.bos], dtype=np.int32), tokens])

    def tokenize_prompt(self, prompt: Prompt, *, add_bos: bool) -> Tokens:
        """int32[n] tokens of a text whose special tokens are read as such where no break is in them; see `tokenize`."""
        return self._with_bos(self._prompts.tokens(prompt), add_bos)

    @functools.cached_property
    def _prompts(self) -> PromptTokenizer:
        spaced = self.detokenize(self.tokenize("a", special=False, add_bos=False)).startswith(" ")
        return PromptTokenizer(self.special_tokens, functools.partial(self.tokenize, add_bos=False), spaced)

    @functools.cached_property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        return special_tokens(self._api, self.vocab, self.header, self.end_tokens)

    @functools.cached_property
    def fewest_tokens(self) -> FewestTokens:
        """Says how few tokens a text can have, before `tokenize` makes them."""
        texts = [self._api.llama_vocab_get_text(self.vocab, token) for token in range(self.n_vocab)]
        control = [special.text.encode() for special in self.special_tokens if special.control]
        return FewestTokens(texts, control, [one.text.encode() for one in self.special_tokens if not one.control])

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes a token adds to a text; control tokens are b"" unless `special`. May end inside a character."""
        return self._piece(token, special)

    @functools.cached_property
    def _piece(self) -> Callable[[int, bool], bytes]:
        convert, n_vocab = self._api.llama_token_to_piece, self.n_vocab
        model = weakref.ref(self)  # the function must not keep the model

        @functools.lru_cache(maxsize=1 << 17)
        def piece(token: int, special: bool) -> bytes:
            buffer = ctypes.create_string_buffer(64)  # its own: faces ask for pieces while the engine's thread does
            if not 0 <= token < n_vocab:
                raise UsageError(f"token {token} does not exist; ids are 0 to {n_vocab - 1}.")
            owner = model()
            if owner is None:
                raise UsageError("the model is closed.")
            count = convert(owner.vocab, token, buffer, len(buffer), 0, special)
            if count < 0:
                buffer = ctypes.create_string_buffer(-count)
                count = convert(owner.vocab, token, buffer, len(buffer), 0, special)
            return buffer.raw[:count]

        return piece

    def sampling(self, given: SamplingParams) -> SamplingParams:
        """Settings for this model: where DRY is on, with its breakers as tokens."""
        if not given.dry_multiplier or isinstance(given, ModelSampling):
            return given
        settings = {item.name: getattr(given, item.name) for item in fields(SamplingParams)}
        return ModelSampling(**settings, breakers=self._breakers(given.dry_sequence_breakers))

    @functools.cached_property
    def _breakers(self) -> Callable[[tuple[str, ...]], Breakers]:
        pieces = functools.cache(lambda: [self.piece(token, special=True) for token in range(self.n_vocab)])
        tokenize = functools.partial(self.tokenize, special=False, add_bos=False)
        return functools.lru_cache(maxsize=64)(lambda texts: breakers(pieces(), texts, tokenize))

    def detokenize(self, tokens: Sequence[int] | Tokens, special: bool = False) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self._piece(int(token), special) for token in tokens).decode("utf-8", "replace")

    def text_of(self, token: int | None) -> str:
        """A token as the vocabulary writes it ("<|im_end|>", "Ġthe"); "" for None."""
        if token is None:
            return ""
        if not 0 <= token < self.n_vocab:
            raise UsageError(f"token {token} does not exist; ids are 0 to {self.n_vocab - 1}.")
        return str(self._api.llama_vocab_get_text(self.vocab, token).decode("utf-8", "replace"))

    @property
    def vocab(self) -> Any:
        """llama.cpp's pointer to the vocabulary; valid while the model is open."""
        if self.handle is None:
            raise UsageError(f"the model {self.path.name} is closed.")
        return self._vocabulary

    @property
    def sha256(self) -> str:
        return file_sha256(self.path)

    def close(self) -> None:
        """Frees the weights and closes its contexts. A second call does nothing."""
        handle, self.handle = getattr(self, "handle", None), None
        if handle is not None:
            for owner in list(self.contexts.values()):
                context = owner()
                if context is not None:
                    context.close()
            if self.gpu_layers and Model.device_lost:
                return
            while self.contexts:  # garbage as this is, and its turn would come later
                self._api.llama_free(self.contexts.popitem()[0])
            self._api.llama_model_free(handle)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # the interpreter is going down
            self.close()


class _Progress:
    """llama.cpp's progress callback: keeps exceptions from crossing C, and gives back what is loaded."""

    def __init__(self, inner: Callable[[float], bool] | None, copied: Sequence[Path]) -> None:
        """`copied`: files whose weights are copied as they load; without their pages there are never two of each."""
        self._inner, self._copied, self._due = inner, copied, _STEP
        self.look: Callable[[], None] | None = None  # called at each step
        self.error: BaseException | None = None

    def __call__(self, share: float, _: object) -> bool:
        try:
            if share >= self._due or share == 1.0:
                self._due = share + _STEP
                give_back(self._copied)
                if self.look is not None:
                    self.look()
            if self._inner is not None and self._inner(share) is False:
                self.error = Cancelled("Stopped while loading the model.")
        except BaseException as error:  # noqa: BLE001 - raised again by `Model.load`
            self.error = error
        return self.error is None


def check_text_model(path: str | Path) -> Header:
    """The header of a file; llama.cpp is not involved. Raises ModelFileError: damaged, or it cannot generate text (a
    projector, adapter, embedding model, ...)."""
    header = read_header(path)
    architecture, kind = header.architecture, header.text("general.type")
    if not architecture:
        raise ModelFileError(f"{path} names no architecture.", "It may be made for a program other than llama.cpp.")
    if architecture == "clip" or kind == "mmproj":
        raise ModelFileError(f"{path} is an image projector (mmproj), not a language model.")
    if kind == "adapter":
        raise ModelFileError(f"{path} is a LoRA adapter, not a whole model.")
    if header.metadata.get(f"{architecture}.attention.causal") is False and architecture != "dflash":
        raise ModelFileError(f"{path} is an embedding model ({architecture}), not a model that generates text.")
    if not header.tensors:
        raise ModelFileError(f"{path} holds no weights.", "It may be a vocabulary file.")
    if "tokenizer.ggml.model" not in header.metadata:
        raise ModelFileError(f"{path} holds no tokenizer.", "Convert the model again with its tokenizer.")
    for key, most in (("block_count", _MOST_LAYERS), ("embedding_length", 1 << 20), ("context_length", 1 << 31)):
        if f"{architecture}.{key}" in header.metadata and not 1 <= header.number(key) <= most:
            raise ModelFileError(f"{path} is corrupt: {architecture}.{key} is {header.number(key)}.")
    _check_what_aborts(header)
    read_parts(header.path)
    return header


def _check_what_aborts(header: Header) -> None:
    """Refuses values that make llama.cpp end the process instead of returning an error."""
    predicted = header.number("nextn_predict_layers")
    if predicted > header.n_layers:
        raise ModelFileError(f"{header.path} is corrupt: {predicted} of its {header.n_layers} layers predict ahead.")
    for key, value in header.metadata.items():
        if key.endswith("_epsilon") and isinstance(value, float) and not 0.0 <= value < 1.0:
            raise ModelFileError(f"{header.path} is corrupt: {key} is {value}.")
    heads_of, shared_of = header.numbers("attention.head_count"), header.numbers("attention.head_count_kv")
    layers = max(len(heads_of), len(shared_of))  # of each layer where layers differ; 0 = not stated, or no attention
    heads_of, shared_of = (one * (layers if len(one) == 1 else 1) for one in (heads_of, shared_of))
    for heads, shared in zip(heads_of, shared_of, strict=False):
        if heads > 0 and shared > 0 and heads % shared:
            raise ModelFileError(f"{header.path} is corrupt: {heads} heads cannot share {shared} keys and values.")
    experts, used = header.number("expert_count"), header.number("expert_used_count")
    listed = f"{header.architecture}.expert_used_count" in header.metadata
    if used > experts or (
        experts and listed and used == 0 and not header.array(f"{header.architecture}.expert_used_count")
    ):
        raise ModelFileError(f"{header.path} is corrupt: it uses {used} of {experts} experts.")
    if experts and not listed:
        raise ModelFileError(f"{header.path} is corrupt: it has {experts} experts but does not say how many are used.")


def file_sha256(path: Path) -> str:
    """Hex digest of a file, remembered for its size and time of change."""
    status = path.stat()
    return _sha256(paths.real(path), status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, _size: int, _changed: int) -> str:
    return paths.sha256_of(path)


def _token_or_none(token: int) -> int | None:
    return None if token < 0 else int(token)


class TensorRows:
    """A matrix in a file, mapped and not read; rows are unpacked when they are asked for."""

    def __init__(self, header: Header, tensor: Tensor) -> None:
        """Raises ModelFileError: it is no matrix, or in a number format that ggml does not unpack."""
        if len(tensor.shape) != 2:
            raise ModelFileError(f"{header.path} is corrupt: {tensor.name} has {len(tensor.shape)} dimensions, not 2.")
        self.columns, self.rows = tensor.shape
        self._unpack: Any = None
        if tensor.type != "F32":
            traits = lib.c_function("ggml_get_type_traits")(TYPE_NUMBERS[tensor.type]).contents
            self._unpack = traits.to_float
            if not self._unpack:
                raise ModelFileError(f"{tensor.name} is in {tensor.type}, which ggml does not unpack.")
        shape = (self.rows, tensor.size // self.rows)
        self._data = np.memmap(header.path, dtype=np.uint8, mode="r", offset=tensor.offset, shape=shape)

    def read(self, rows: slice | npt.NDArray[np.integer]) -> Float32Array:
        packed = np.ascontiguousarray(self._data[rows])
        if self._unpack is None:
            return packed.view(np.float32)
        found = np.empty((len(packed), self.columns), dtype=np.float32)
        self._unpack(packed.ctypes.data, found.ctypes.data, found.size)
        return found
