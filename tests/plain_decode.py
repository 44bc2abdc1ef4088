"""Plain greedy decoding with llama.cpp's bindings alone, one token per `llama_decode`: what localspec is compared with.

Nothing of localspec is imported. The prompt without its last token is prefilled in chunks of 512 from position 0.

    python tests/plain_decode.py MODEL "prompt" --count 64 --threads 2 --type-v bf16
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
from pathlib import Path
from typing import Any

TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}


def decode(
    path: str | Path, prompt: str | list[int], count: int, *, n_ctx: int = 2048, threads: int = 2, type_k: str = "f16",
    type_v: str = "f16", flash_attention: bool | str = "auto", repack: bool = True, chunk: int = 512,
) -> list[int]:  # fmt: skip
    """The next `count` most likely tokens (ties to the lowest id), also behind one that ends an answer."""
    package = "llama_cpp" if importlib.util.find_spec("llama_cpp") else "localspec_llama"
    api: Any = importlib.import_module(f"{package}.llama_cpp")
    params = api.llama_model_default_params()
    params.use_extra_bufts = repack and b"AMX_INT8 = 1" not in api.llama_print_system_info()  # GCC 12's crash
    model: Any = api.llama_model_load_from_file(str(path).encode(), params)
    vocab: Any = api.llama_model_get_vocab(model)
    options = api.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = n_ctx, chunk, chunk
    options.n_threads = options.n_threads_batch = threads
    options.type_k, options.type_v = TYPES[type_k], TYPES[type_v]
    options.flash_attn_type, options.swa_full = {"auto": -1, False: 0, True: 1}[flash_attention], True
    context: Any = api.llama_init_from_model(model, options)
    if isinstance(prompt, str):
        room = (ctypes.c_int32 * (len(prompt.encode()) + 8))()
        found = api.llama_tokenize(vocab, prompt.encode(), len(prompt.encode()), room, len(room), True, True)
        prompt = list(room[:found])

    def run(tokens: list[int]) -> None:
        array = (ctypes.c_int32 * len(tokens))(*tokens)  # must outlive the call
        assert api.llama_decode(context, api.llama_batch_get_one(array, len(tokens))) == 0

    for start in range(0, len(prompt) - 1, chunk):
        run(prompt[start : min(start + chunk, len(prompt) - 1)])
    token, answer = prompt[-1], list[int]()
    while len(answer) < count:
        run([token])
        row = api.llama_get_logits_ith(context, -1)[: api.llama_vocab_n_tokens(vocab)]
        token = row.index(max(row))
        answer.append(token)
    api.llama_free(context)
    api.llama_model_free(model)
    return answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--type-k", choices=TYPES, default="f16")
    parser.add_argument("--type-v", choices=TYPES, default="f16")
    parser.add_argument(
        "--no-flash-attention", dest="flash_attention", action="store_const", const=False, default="auto"
    )
    parser.add_argument("--no-repack", action="store_true")
    given = parser.parse_args()
    options = {key: value for key, value in vars(given).items() if key not in ("model", "prompt", "count", "no_repack")}
    print(*decode(given.model, given.prompt, given.count, repack=not given.no_repack, **options))
