"""Tokens a pass of a DFlash or DSpark head, counted on text that the target wrote.

The coupled choice gives every draft the noise that the target's own choice has, so a text does not depend on its
drafts: it is written once, and each head is then led along it. Noise that leads to a written token is drawn after the
fact, from the distribution it has given that token.

    python passes.py HEAD.gguf TARGET.gguf SAMPLES.pt
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import answers
import gguf
import numpy as np
import torch
import warm
from chat import prompt_ids
from dflash_head import MASK, BlockShape, DFlash
from export_dflash import title
from model import Llama
from tokenizers import Tokenizer
from torch import Tensor
from train_eagle3 import look

PROMPTS = Path(__file__).resolve().parents[2] / "localspec" / "data" / "workloads.jsonl"
WORKLOADS = ("maths", "code-edit", "json", "copy", "chat")
EACH, MOST, DRAWS = 4, 64, 4
"""Prompts of a workload, tokens of an answer, and how many times its noise is drawn: as measure_heads.py is called."""


@dataclass(frozen=True)
class Sample:
    """A prompt and what the target answered at a temperature of 0 or 1."""

    tokens: Tensor  # int64[n]
    start: int  # of the answer
    temperature: float
    states: Tensor  # float32[n, layers * hidden]
    scores: Tensor  # float32[n - start, vocabulary]: those the answer was drawn from, as log-probabilities


def prompts(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The first held-out prompts of every workload."""
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    for workload in WORKLOADS:
        for row in [row for row in rows if row["workload"] == workload][:EACH]:
            yield prompt_ids(tokenizer, row["messages"][:1])


@torch.no_grad()
def load(path: Path, target: Llama, tokenizer: Tokenizer, layers: tuple[int, ...] = (1, 3, 5)) -> list[Sample]:
    """The samples of a file, which is written where there is none."""
    if not path.exists():
        asked = list(prompts(tokenizer))
        texts = []
        for heat in (0.0, 1.0):
            said = answers.Writer(target, seed=1).answers(asked, [heat] * len(asked), MOST)
            texts += [(one.prompt + one.tokens[1:].tolist(), len(one.prompt), heat) for one in said]
        torch.save(texts, path)
    found = []
    for ids, start, heat in torch.load(path, weights_only=True):
        tokens = torch.tensor(ids)
        states, final = look(target, layers, tokens[None])
        scores = target.logits(final[0, start - 1 : -1]).log_softmax(-1)
        found.append(Sample(tokens, start, heat, states[0], scores))
    return found


def noise_of(scores: Tensor, tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Gumbel noise (n, vocabulary) with which log-probabilities lead to these tokens."""

    def gumbel(*size: int) -> Tensor:
        return -torch.empty(size).exponential_(generator=generator).log()

    best = gumbel(len(scores), 1)
    below = -torch.logaddexp(-best, -(scores + gumbel(*scores.shape)))
    return below.scatter(1, tokens[:, None], best) - scores


@torch.no_grad()
def accepted(head: DFlash, target: Llama, sample: Sample, depth: int, draw: int, share: float = 1.0) -> Tensor:
    """How many guesses hold after each token from the prompt's last one on, int64[n - start].

    Args:
        depth: the most guesses of a draft.
        draw: seed of the noise.
        share: of the noise that drafts take part in; 0 makes every draft the likeliest token.
    """
    tokens, start, shape = sample.tokens, sample.start, head.shape
    count, depth = len(tokens) - start, min(depth, shape.guesses)
    places = torch.arange(start - 1, len(tokens) - 1)
    hidden = head(sample.states[None], places[None], target.embedding[tokens[places]][None], target.embedding[MASK])[0]
    noise = torch.zeros_like(sample.scores)
    if sample.temperature:
        noise = noise_of(sample.scores, tokens[start:], torch.Generator().manual_seed(draw))
    right = torch.zeros(count, depth, dtype=torch.long)
    for guess in range(min(depth, count)):
        rows = count - guess
        said = head.logits(hidden[:rows, shape.first + guess], target.embedding, tokens[places[guess:]])
        drawn = (said.log_softmax(-1) + share * noise[guess:]).argmax(-1)
        right[:rows, guess] = drawn == tokens[start + guess :]
    return right.cumprod(-1).sum(-1)


def tokens_a_pass(
    head: DFlash, target: Llama, samples: list[Sample], depth: int, share: float = 1.0
) -> dict[str, float]:
    """By temperature; for the arguments see `accepted`."""
    found = {}
    for heat in sorted({sample.temperature for sample in samples}):
        tokens = passes = 0
        for sample in samples:
            for draw in range(DRAWS if heat else 1):
                if sample.temperature != heat:
                    continue
                holds, at = accepted(head, target, sample, depth, draw, share).tolist(), 0
                while at < len(holds):
                    at += holds[at] + 1
                    passes += 1
                tokens += len(holds)
        found[f"{heat:g}"] = round(tokens / passes, 3)
    return found


def read(path: Path) -> DFlash:
    """The head in a GGUF that `export_dflash.py` wrote, with the rounding of its weights."""
    reader = gguf.GGUFReader(path)
    tensors = {one.name: gguf.quants.dequantize(one.data, one.tensor_type) for one in reader.tensors}
    rank = tensors["markov_w1.weight"].shape[1] if "markov_w1.weight" in tensors else 0
    facts = {name: reader.fields[f"dflash.{name}"].contents() for name in ("block_size", "target_layers")}
    head = DFlash(BlockShape(layers=tuple(facts["target_layers"]), block=facts["block_size"], rank=rank))
    head.load_state_dict({name: torch.from_numpy(np.array(tensors[title(name)])) for name in head.state_dict()})
    return head


def main() -> None:
    """Figures on stdout."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("head", type=Path)
    options.add_argument("target", type=Path)
    options.add_argument("samples", type=Path, help="is written where there is none")
    options.add_argument("--noise", type=float, default=1.0, help="share of the noise in drafts; 0: the likeliest")
    args = options.parse_args()
    torch.set_num_threads(1)
    target, head = warm.frozen(args.target), read(args.head)
    samples = load(args.samples, target, warm.read_tokenizer(args.target), head.shape.layers)
    for depth in range(1, head.shape.guesses + 1):
        found = tokens_a_pass(head, target, samples, depth, args.noise)
        print(json.dumps({"guesses": depth, "tokens_a_pass": found}))


if __name__ == "__main__":
    main()
