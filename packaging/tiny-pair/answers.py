"""What the target itself writes, with its final states: the material that heads are trained and measured on.

Many prompts are answered at once with one cache, each row at its own position and temperature, so that a token costs
little more than its matrix products.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import corpus
import tokenizer as tokens
import torch
import warm
from batches import Mixture, Phase
from model import Block, Llama, rotate
from torch import Tensor
from torch.nn import functional
from train import SHARES

TARGET_FILE = Path(__file__).resolve().parents[2] / "localspec" / "data" / "tiny-target-q8_0.gguf"
PHASE = Phase(1.0, 320, 1, 60, {**SHARES, "gsm8k": 0.14, "codegen": 0.1, "roleplay": 0.1, "toolformer": 0.08})
MOST = 96  # tokens of an answer
TEMPERATURES = (0.0, 0.0, 0.7, 1.0, 1.0)


@dataclass(frozen=True)
class Answer:
    """One answer after its prompt. State i predicts token i + 1, so states and tokens overlap."""

    prompt: list[int]
    temperature: float
    tokens: Tensor  # int64[n]: the prompt's last token, then the answer
    states: Tensor  # float16[n - 1, hidden]: final normed states of all of these tokens but the last


@dataclass
class _Rows:
    """The answers that are being written."""

    numbers: list[int]
    lengths: Tensor  # int64[rows]: tokens in the cache
    last: Tensor  # int64[rows]: the token that is not in it yet
    temperatures: Tensor

    def keep(self, kept: Tensor) -> None:
        self.numbers = [self.numbers[index] for index in kept.tolist()]
        self.lengths, self.last, self.temperatures = self.lengths[kept], self.last[kept], self.temperatures[kept]


class Writer:
    """Writes answers with the target; for inference only."""

    def __init__(self, model: Llama, seed: int) -> None:
        self.model = model
        self.generator = torch.Generator().manual_seed(seed)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.cos, self.sin = model.angles(model.shape.context, torch.empty(0))

    @torch.no_grad()
    def answers(self, prompts: Sequence[list[int]], temperatures: Sequence[float], most: int) -> list[Answer]:
        """Answers up to the end of the turn, at most `most` tokens each."""
        width = max(map(len, prompts)) + most
        lengths = torch.tensor([len(prompt) - 1 for prompt in prompts])
        last = torch.tensor([prompt[-1] for prompt in prompts])
        rows = _Rows(list(range(len(prompts))), lengths, last, torch.tensor(temperatures))
        self._read(prompts, width)
        said: list[list[int]] = [[prompt[-1]] for prompt in prompts]
        states: list[list[Tensor]] = [[] for _ in prompts]
        for _ in range(most):
            found = self._step(rows)
            drawn = self._draw(self.model.logits(found).float(), rows.temperatures)
            for row, number in enumerate(rows.numbers):
                states[number].append(found[row].half())
                said[number].append(int(drawn[row]))
            rows.lengths, rows.last = rows.lengths + 1, drawn
            going = (drawn != tokens.END).nonzero().squeeze(1)
            if not len(going):
                break
            if len(going) < len(rows.numbers):
                rows.keep(going)
                self.keys = [key[going] for key in self.keys]
                self.values = [value[going] for value in self.values]
        return [
            Answer(list(prompt), float(heat), torch.tensor(said[index]), torch.stack(states[index]))
            for index, (prompt, heat) in enumerate(zip(prompts, temperatures, strict=True))
        ]

    def _draw(self, scores: Tensor, temperatures: Tensor) -> Tensor:
        noise = -torch.empty_like(scores).exponential_(generator=self.generator).log()
        heat = temperatures[:, None]
        return torch.where(heat > 0, scores / heat.clamp(min=1e-3) + noise, scores).argmax(-1)

    def _read(self, prompts: Sequence[list[int]], width: int) -> None:
        """Fills the cache with all of the prompts but their last tokens."""
        longest = max(map(len, prompts)) - 1
        padded = torch.full((len(prompts), max(longest, 1)), tokens.PAD)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt) - 1] = torch.tensor(prompt[:-1])
        positions = torch.arange(padded.shape[1]).expand_as(padded)
        shape = self.model.shape
        size = (len(prompts), shape.kv_heads, width, shape.head_size)
        self.keys = [torch.zeros(size) for _ in self.model.blocks]
        self.values = [torch.zeros(size) for _ in self.model.blocks]
        self._pass(padded, positions)

    def _step(self, rows: _Rows) -> Tensor:
        """Final states of one token each."""
        return self._pass(rows.last[:, None], rows.lengths[:, None])[:, 0]

    def _pass(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = functional.embedding(ids, self.model.embedding).bfloat16()
        cos, sin = (table.bfloat16()[positions][:, None] for table in (self.cos, self.sin))
        used = int(positions.max()) + 1
        seen = torch.where(torch.arange(used) <= positions[:, None, None, :, None], 0.0, -torch.inf)
        for index, block in enumerate(self.model.blocks):
            x = self._block(block, index, x, positions, cos, sin, seen)
        hidden: Tensor = self.model.norm(x)
        return hidden

    def _block(
        self, block: Block, index: int, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, seen: Tensor
    ) -> Tensor:
        batch, length, _ = x.shape
        size, groups = block.shape.head_size, block.shape.heads // block.shape.kv_heads
        h = block.attention_norm(x)
        q = rotate(
            functional.linear(h, block.q.weight.bfloat16()).view(batch, length, -1, size).transpose(1, 2), cos, sin
        )
        k = rotate(
            functional.linear(h, block.k.weight.bfloat16()).view(batch, length, -1, size).transpose(1, 2), cos, sin
        )
        v = functional.linear(h, block.v.weight.bfloat16()).view(batch, length, -1, size).transpose(1, 2)
        row, used = torch.arange(batch)[:, None], seen.shape[-1]
        self.keys[index][row, :, positions] = k.transpose(1, 2).float()
        self.values[index][row, :, positions] = v.transpose(1, 2).float()
        keys, values = self.keys[index][:, :, None, :used], self.values[index][:, :, None, :used]
        q = q.float().view(batch, -1, groups, length, size) * size**-0.5
        if length == 1:  # one product for the heads that share keys
            q = q.transpose(2, 3)
        mixed = ((q @ keys.mT + seen).softmax(-1) @ values).bfloat16()
        if length == 1:
            mixed = mixed.transpose(2, 3)
        mixed = mixed.reshape(batch, -1, length, size).transpose(1, 2).reshape(batch, length, -1)
        x = x + functional.linear(mixed, block.o.weight.bfloat16())
        h = block.feed_forward_norm(x)
        gate = functional.silu(functional.linear(h, block.gate.weight.bfloat16()))
        inner = gate * functional.linear(h, block.up.weight.bfloat16())
        return x + functional.linear(inner, block.down.weight.bfloat16())


def prompt_of(ids: Sequence[int]) -> list[int]:
    """A whole chat up to where its last answer begins."""
    return list(ids[: max(index for index, token in enumerate(ids) if token == tokens.ROLES["assistant"]) + 1])


def main() -> None:
    """Collect answers to the training mixture until the time is over; a second run adds to the file."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("corpus", type=Path, help="folder with the four text files")
    options.add_argument("out", type=Path, help="file of answers")
    options.add_argument("--target", type=Path, default=TARGET_FILE)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rows", type=int, default=96, help="answers written at the same time")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    model = warm.frozen(args.target)
    found = load(args.out) if args.out.exists() else []
    train, _ = corpus.split(args.corpus)
    seed = args.seed * 1000 + len(found)
    mixture = Mixture(warm.read_tokenizer(args.target), train, corpus.material_of(train), seed)
    writer, heat = Writer(model, seed), random.Random(seed)
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        documents = [mixture.document(PHASE)[0] for _ in range(args.rows)]
        prompts = [prompt_of(ids) for ids in documents if tokens.ROLES["assistant"] in ids]
        found += writer.answers(prompts, heat.choices(TEMPERATURES, k=len(prompts)), MOST)
        torch.save([asdict(answer) for answer in found], args.out.with_suffix(".half"))
        args.out.with_suffix(".half").replace(args.out)
        print(json.dumps({"answers": len(found), "tokens": sum(len(item.states) for item in found)}), flush=True)


def load(path: Path) -> list[Answer]:
    """The answers of a file."""
    return [Answer(**item) for item in torch.load(path, weights_only=True)]


if __name__ == "__main__":
    main()
