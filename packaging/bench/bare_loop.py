"""llama.cpp itself as a contender: a loop over its low-level functions, with its own sampler chain, nothing drafted."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp

from localspec.bench.run import Answer, Turn
from localspec.llama import lib
from localspec.types import SamplingParams

_CHUNK = 512


class BareLoop:
    """Repacked weights and an F16 cache, as llama.cpp does it by default; flash attention as asked."""

    def __init__(
        self,
        target: Path,
        n_ctx: int,
        threads: int,
        flash_attention: bool,
        reuse: bool,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        lib.api()  # silences llama.cpp's log
        self._model = llama_cpp.llama_model_load_from_file(str(target).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {target}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, _CHUNK, _CHUNK
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type, params.no_perf = lib.FLASH_ATTENTION["auto" if flash_attention else False], True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._batch = llama_cpp.llama_batch_init(_CHUNK, 0, 1)
        self._held: list[int] = []
        self._reuse = reuse
        self.facts = {
            "program": f"llama.cpp of llama-cpp-python {llama_cpp.__version__}, bare loop",
            "n_ctx": n_ctx,
            "threads": threads,
            "flash attention": flash_attention,
            "reuse": reuse,
        }

    def about(self) -> dict[str, Any]:
        return self.facts

    def begin(self) -> None:
        """Forgets what it has read."""
        if not self._reuse:
            self._keep(0)

    def answer(self, turn: Turn) -> Answer:
        """Reads all but the last token of the prompt, then decodes one token a pass."""
        prompt, start = [int(token) for token in turn.tokens], perf_counter()
        same = 0
        while same < min(len(self._held), len(prompt) - 1) and self._held[same] == prompt[same]:
            same += 1
        self._keep(same)
        for first in range(same, len(prompt) - 1, _CHUNK):
            self._decode(prompt[first : min(first + _CHUNK, len(prompt) - 1)], logits=False)
        prefill = perf_counter() - start
        sampler = _sampler(turn.sampling, turn.seed)
        tokens: list[int] = []
        arrivals: list[tuple[float, int]] = []
        finish, token = "length", prompt[-1]
        try:
            while len(tokens) < turn.max_tokens:
                self._decode([token], logits=True)
                token = llama_cpp.llama_sampler_sample(sampler, self._context, -1)
                tokens.append(token)
                arrivals.append((perf_counter() - start, 1))
                if not turn.ignore_end and llama_cpp.llama_vocab_is_eog(self._vocab, token):
                    finish = "stop"
                    break
        finally:
            llama_cpp.llama_sampler_free(sampler)
        return Answer(
            self._text(tokens), len(tokens), perf_counter() - start, arrivals, prefill_seconds=prefill, finish=finish
        )

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def _keep(self, count: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, 0, count, -1)
        del self._held[count:]

    def _decode(self, tokens: list[int], logits: bool) -> None:
        batch, start = self._batch, len(self._held)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 0
            batch.seq_id[i][0] = 0
        batch.logits[len(tokens) - 1] = int(logits)
        if llama_cpp.llama_decode(self._context, batch):
            raise SystemExit("llama_decode failed")
        self._held += tokens

    def _text(self, tokens: list[int]) -> str:
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        buffer = ctypes.create_string_buffer(32 * len(tokens) + 64)
        size = llama_cpp.llama_detokenize(self._vocab, ids, len(tokens), buffer, len(buffer), False, False)
        return buffer.raw[: max(0, size)].decode("utf-8", "replace")


def _sampler(sampling: SamplingParams, seed: int) -> Any:
    """llama.cpp's default chain, as far as these settings use it."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if sampling.temperature == 0:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
        return chain
    for part in (
        llama_cpp.llama_sampler_init_top_k(sampling.top_k),
        llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1),
        llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1),
        llama_cpp.llama_sampler_init_temp(sampling.temperature),
        llama_cpp.llama_sampler_init_dist(seed % 2**32),
    ):
        llama_cpp.llama_sampler_chain_add(chain, part)
    return chain
