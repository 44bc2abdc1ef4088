"""Put Medusa heads or an MLP speculator of the tiny target into a larger shape, for a target that
`packaging/bench/make_pair.py` padded: the same guesses at the price of a larger model's heads.

    python pad_heads.py ../../tests/data/heads/tiny-medusa OUT --hidden 2048
    localspec bench run --target PADDED.gguf --head OUT --drafters medusa,lookup
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from localspec.models.facts.heads import Tensors, save
from localspec.native.library import Int8Matrix

NEVER = -100.0
"""Of a padding token in the last channel, where a target with a padded vocabulary has a positive constant."""


def widened(matrix: Int8Matrix, rows: int, columns: int, factor: float = 1.0) -> Int8Matrix:
    """In the first rows and columns of a larger one, times a factor."""
    values, scales = np.zeros((rows, columns), dtype=np.int8), np.ones(rows, dtype=np.float32)
    values[: len(matrix.values), : matrix.shape[1]] = matrix.values
    scales[: len(matrix.scales)] = matrix.scales * np.float32(factor)
    return Int8Matrix(values, scales)


def output(matrix: Int8Matrix, rows: int, columns: int) -> Int8Matrix:
    """An output matrix; tokens that only fill the vocabulary are never the best."""
    found = widened(matrix, rows, columns)
    found.values[len(matrix.values) :, -1] = -127
    found.scales[len(matrix.values) :] = -NEVER / 127
    return found


def extended(vector: np.ndarray, length: int, factor: float = 1.0) -> np.ndarray:
    """With zeros after it."""
    found = np.zeros(length, dtype=np.float32)
    found[: len(vector)] = vector * factor
    return found


def medusa(tensors: Tensors, hidden: int, vocabulary: int) -> Iterator[tuple[str, Int8Matrix | np.ndarray]]:
    """The tensors of Medusa heads."""
    for name, shape in tensors.shapes.items():
        if name.endswith("_scale"):
            continue
        if name.endswith(".bias"):
            yield name, extended(tensors.array(name), hidden)
        elif ".linear." in name:
            yield name, widened(tensors.matrix(name), hidden, hidden)
        else:
            yield name, output(tensors.matrix(name), vocabulary or shape[0], hidden)


def speculator(
    tensors: Tensors, hidden: int, vocabulary: int, inner: int, was: int
) -> Iterator[tuple[str, Int8Matrix | np.ndarray]]:
    """The tensors of a speculator. Its norm takes the mean over more channels, and a token's weight grows with them."""
    factor = (was / inner) ** 0.5
    for name, shape in tensors.shapes.items():
        kind = name.split(".")[1]
        if name.endswith("_scale"):
            continue
        if kind == "ln":
            yield name, extended(tensors.array(name), inner, factor if name.endswith("weight") else 1.0)
        elif kind == "proj":
            columns = hidden if name.split(".")[2] == "0" else inner
            yield name, widened(tensors.matrix(name), inner, columns)
        elif kind == "emb":
            yield name, widened(tensors.matrix(name), vocabulary or shape[0], inner, factor)
        else:
            if vocabulary > shape[0]:
                raise SystemExit(
                    "A speculator has no channel that could keep padding tokens out: leave out --vocabulary."
                )
            yield name, output(tensors.matrix(name), shape[0], inner)


def main() -> None:
    """Write OUT/config.json and OUT/model.safetensors."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("head", type=Path, help="folder of the head")
    options.add_argument("out", type=Path, help="folder to write")
    options.add_argument("--hidden", type=int, default=2048, help="hidden size of the padded target")
    options.add_argument("--vocabulary", type=int, default=0, help="its tokens; 0 = the head's own")
    options.add_argument("--inner", type=int, default=0, help="of a speculator; 0 = the hidden size")
    args = options.parse_args()
    config, tensors = json.loads((args.head / "config.json").read_text(encoding="utf-8")), Tensors(args.head)
    inner = args.inner or args.hidden
    config.pop("target_sha256", None)  # padded files differ from machine to machine
    if config.get("model_type") == "mlp_speculator":
        found = speculator(tensors, args.hidden, args.vocabulary, inner, config["inner_dim"])
        config |= {"emb_dim": args.hidden, "inner_dim": inner}
    else:
        found = medusa(tensors, args.hidden, args.vocabulary)
        config |= {"hidden_size": args.hidden}
    config["vocab_size"] = args.vocabulary or config["vocab_size"]
    written: dict[str, np.ndarray] = {}
    for name, one in found:
        if isinstance(one, Int8Matrix):
            written |= {name: one.values, f"{name}_scale": one.scales[:, None]}
        else:
            written[name] = one
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save(args.out / "model.safetensors", written, {"format": "pt"})


if __name__ == "__main__":
    main()
