"""llama.cpp by its low-level bindings alone, with none of localspec: its tokenizer, its chat template, its rows."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec.types import Float32Array

_CONTEXT = 2048
_PACKAGE = "llama_cpp" if importlib.util.find_spec("llama_cpp") else "localspec_llama"


class Bare:
    """A model file in llama.cpp; the weights are loaded when rows are first asked for."""

    def __init__(self, path: Path) -> None:
        self.api: Any = importlib.import_module(f"{_PACKAGE}.llama_cpp")
        self._path = path
        self._tokenizer = self._load(vocab_only=True)
        self.vocab = self.api.llama_model_get_vocab(self._tokenizer)

    def _load(self, vocab_only: bool) -> Any:
        params = self.api.llama_model_default_params()
        params.vocab_only = vocab_only
        return self.api.llama_model_load_from_file(str(self._path).encode(), params)

    def tokenize(self, text: str, special: bool, begin: bool = False) -> list[int]:
        """`begin`: put the begin-of-sequence token first where the model wants one."""
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 8))()
        count = self.api.llama_tokenize(self.vocab, data, len(data), room, len(room), begin, special)
        assert count >= 0
        return list(room[:count])

    def chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """The prompt of (role, text)s by what llama.cpp makes of the file's template, without Jinja."""
        array = (self.api.llama_chat_message * len(messages))()
        for place, (role, text) in enumerate(messages):
            array[place].role, array[place].content = role.encode(), text.encode()
        template = self.api.llama_model_chat_template(self._tokenizer, None)
        buffer = ctypes.create_string_buffer(1 << 14)
        size = self.api.llama_chat_apply_template(template, array, len(messages), True, buffer, len(buffer))
        assert 0 < size < len(buffer)
        return buffer.raw[:size].decode()

    def rows(self, tokens: Sequence[int], threads: int) -> Float32Array:
        """float32[n, vocabulary], logits after each token, one token a pass."""
        api = self.api
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = _CONTEXT
        params.n_threads = params.n_threads_batch = threads
        model = self._load(vocab_only=False)
        context = api.llama_init_from_model(model, params)
        found = []
        for token in tokens:
            one = (ctypes.c_int32 * 1)(token)  # must outlive the call
            assert api.llama_decode(context, api.llama_batch_get_one(one, 1)) == 0
            row = api.llama_get_logits_ith(context, -1)
            found.append(np.ctypeslib.as_array(row, (api.llama_vocab_n_tokens(self.vocab),)).copy())
        api.llama_free(context)
        api.llama_model_free(model)
        return np.array(found)

    def close(self) -> None:
        self.api.llama_model_free(self._tokenizer)
