"""Which widths of a pass give the same bits on a device: compared, for files of models or for tiny random ones.

    packaging/vulkan/run FOLDER python packaging/vulkan/widths.py [--device Vulkan0] [--only TEXT] [MODEL.gguf ...]

After each length, 16 tokens are computed in passes of 1, 2, ... 16 rows. Widths with the same logits are one class. One
line is printed for each model: the classes; the first tensor in which other widths than 1 differ from width 1 (watching
ends some fusions); widths at which a row's bits depend on its place in a pass; and whether rows have the same bits in
passes filled up to 8 rows, as `strict` computes on a GPU (`ConstantWidth`). The first pass of each width waits for the
driver to compile shaders: minutes on a software device.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from localspec.llama.cache.context import ConstantWidth, Context
from localspec.llama.library import handle
from localspec.llama.library.handle import Observer
from localspec.llama.library.settings import GPU_WIDTH, ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Tokens

ROWS = WIDEST = 16
LENGTHS, STEP = (40, 280, 520), 248
"""Tokens before the compared rows: in the first three blocks of 256 cells of attention; and where a block ends."""
SETTINGS = ContextSettings(n_ctx=640, grid=16, max_rows=32)
MADE: dict[str, tuple[str, dict[str, int], tuple[str, ...]]] = {
    "dense": ("llama", {}, ("Q8_0", "F16", "Q4_K_S", "Q4_0", "Q6_K", "BF16", "F32")),
    "no shared heads": ("llama", {"attention__head_count_kv": 4}, ("Q8_0",)),
    "experts": ("mixtral", {}, ("Q8_0", "F16")),
    "window": ("gemma3", {}, ("Q8_0",)),
    "scan": ("nemotron_h", {}, ("Q8_0",)),
    "delta net": ("qwen35", {}, ("Q8_0",)),
    "latent attention": ("deepseek2", {}, ("Q8_0",)),
}
"""Recipes of tests/llama/recipes.py, metadata in place of theirs, and formats."""
SEEN = re.compile(
    r"Vcur-\d+ \(view\)|(kqv_out|attn_out|ffn_norm|ffn_moe_logits|ffn_moe_out|ffn_out|l_out)-\d+|result_\w+"
)

Row = dict[str, bytes]  # tensor -> bits, in the order in which they are computed


def computed(context: Context, tokens: Tokens, length: int, width: int, first: int = 0) -> list[Row]:
    """The rows after `length` tokens, in passes of `width` rows; the second pass begins at row `first`, which the first
    pass may have computed, too."""
    found: list[Row] = [{}] * ROWS
    observer = context._observer
    context.forget(0, length - 1)
    for start in (0, *range(first or width, ROWS, width)):
        end = length + start
        below = np.arange(-1, width - 2, dtype=np.int32)
        (rows,) = context.decode([Feed(0, tokens[:end], length, tokens[end : end + width - 1], below)])
        for row in range(min(width, ROWS - start)):
            seen = observer.rows.items() if observer else ()
            found[start + row] = {name: values[row].tobytes() for name, values in seen} | {"": rows[row].tobytes()}
    return found


def after(context: Context, tokens: Tokens, length: int, widths: Sequence[int]) -> dict[int, list[Row]]:
    """The rows after a prompt that is the same for all widths."""
    context.forget(0)
    context.prefill(0, tokens[:length], length)
    return {width: computed(context, tokens, length, width) for width in widths}


def ranges(widths: Sequence[int]) -> str:
    parts = np.split(widths, np.flatnonzero(np.diff(widths) > 1) + 1)
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def classes(rows: dict[int, list[Row]]) -> str:
    """Widths with the same bits, "1-2 | 3-8 | 9-16"."""
    found: dict[tuple[bytes, ...], list[int]] = {}
    for width, each in rows.items():
        found.setdefault(tuple(row[""] for row in each), []).append(width)
    return " | ".join(map(ranges, found.values()))


def first_differences(rows: dict[int, list[Row]]) -> str:
    """Of the widths whose bits are not those of 1, the first tensor in which they are not."""
    found: dict[str, list[int]] = {}
    for width, each in rows.items():
        names = (name for one, other in zip(rows[1], each, strict=True) for name in other if one[name] != other[name])
        if name := min(names, key=list(each[0]).index, default=""):
            found.setdefault(name.removesuffix(" (view)"), []).append(width)
    return ", ".join(f"{ranges(widths)} from {name} on" for name, widths in found.items())


def line(path: Path, device: str) -> str:
    with closing(Model.load(path, gpu_layers=-1, device=device)) as model:
        settings = SETTINGS if model.can_trim else replace(SETTINGS, rollback=WIDEST - 1)
        tokens = np.random.default_rng(1).integers(0, model.n_vocab, settings.n_ctx).astype(np.int32)
        said: dict[str, list[str]] = {}
        with closing(Context(model, settings)) as context, closing(Context(model, settings, Observer())) as observed:
            widths, places = range(1, 1 + min(WIDEST, 1 + context.most_nodes)), set[int]()
            for length in (*LENGTHS, STEP):
                rows = after(context, tokens, length, widths)
                for width in widths if model.can_trim and length != STEP else ():
                    for shift in {1, width // 2} - {0, width}:
                        if computed(context, tokens, length, width, shift) != rows[width]:
                            places.add(width)
                seen = after(observed, tokens, length, widths)
                said.setdefault(f"{classes(rows)} ({first_differences(seen)})", []).append(str(length))
        parts = [f"after {','.join(lengths)}: {what}" for what, lengths in said.items()]
        if model.can_trim:
            parts.append(f"a row's place counts: {ranges(sorted(places)) if places else 'never'}")
            with closing(ConstantWidth(model, SETTINGS, GPU_WIDTH)) as constant:
                parts.append(f"filled up to {GPU_WIDTH}: {'the same' if constant.same_bits() else 'NOT THE SAME'}")
        return "; ".join(parts)


def made(folder: Path, only: str) -> Iterator[Path]:
    """Tiny models, each written when it is asked for."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.llama import architectures
    from tests.quantised import quantize

    for name, (recipe, sizes, formats) in MADE.items():
        for kind in formats:
            if only in f"{name} {kind}":
                plain = architectures.write(recipe, folder, **sizes)
                yield quantize(plain, folder / f"{name} {kind}.gguf", kind, threads=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--device", default="Vulkan0", help="llama.cpp's name of it")
    parser.add_argument("--only", default="", help="of the tiny models those whose names have this")
    options = parser.parse_args()
    handle.WATCHED = SEEN.fullmatch
    with tempfile.TemporaryDirectory() as folder:
        for path in options.models or made(Path(folder), options.only):
            start = time.monotonic()
            said = line(path, options.device)
            print(f"{path.stem}: {said}; {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
