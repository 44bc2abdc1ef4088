"""Which kind of drafter learns fastest from a GGUF target's own answers? Trains small ones and compares them.

    python answers.py TARGET CORPUS OUT          # answers of the target and its states, through localspec's engine
    python train.py TARGET OUT top               # its most likely tokens at every place
    python train.py TARGET OUT train KIND        # cut2, cut4, exit4, exit6, eagle
    python train.py TARGET OUT measure KIND      # on held-out answers; training ends with it
    python train.py TARGET OUT table             # a row for every kind that was trained

TARGET is a GGUF file of the llama architecture, which is dequantised. Needs torch and gguf. Drafters guess among the
`DRAFTED` tokens that the answers use most.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

DRAFTED = 8192
"""Tokens that a drafter can guess."""
TOP = 64
"""Logits of the target that are kept for each token."""
CHAIN = 6
"""Tokens of a draft."""
HELD_OUT = {"maths": 0.0, "code": 0.0, "maths-warm": 0.8, "code-warm": 0.8}
"""Answers that nothing is trained on, and their temperatures."""


Row = dict[str, Any]
"""Tensors of one answer: tokens, prompt (a number), states, and the target's top logits."""


# -- the target in PyTorch --


class Shape:
    def __init__(self, reader: gguf.GGUFReader) -> None:
        def field(name: str) -> float:
            return float(reader.fields[f"llama.{name}"].contents())

        self.layers, self.hidden = int(field("block_count")), int(field("embedding_length"))
        self.heads, self.kv_heads = int(field("attention.head_count")), int(field("attention.head_count_kv"))
        self.base, self.epsilon = field("rope.freq_base"), field("attention.layer_norm_rms_epsilon")
        self.head_size = self.hidden // self.heads


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., n, head_size], pairs side by side as GGUF's llama has them."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, shape: Shape, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.shape = shape
        self.weights = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in tensors.items()})

    def norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weights[name], self.shape.epsilon)

    def heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values [batch, heads, n, head_size]."""
        batch, n, _ = x.shape
        made = []
        for name, heads in (
            ("attn_q", self.shape.heads),
            ("attn_k", self.shape.kv_heads),
            ("attn_v", self.shape.kv_heads),
        ):
            made.append((x @ self.weights[name].T).view(batch, n, heads, -1).transpose(1, 2))
        return rotate(made[0], cos, sin), rotate(made[1], cos, sin), made[2]

    def feed(self, x: Tensor) -> Tensor:
        h = self.norm(x, "ffn_norm")
        return (
            x
            + (functional.silu(h @ self.weights["ffn_gate"].T) * (h @ self.weights["ffn_up"].T))
            @ self.weights["ffn_down"].T
        )

    def join(self, x: Tensor, attended: Tensor) -> Tensor:
        batch, _, n, _ = attended.shape
        return self.feed(x + attended.transpose(1, 2).reshape(batch, n, -1) @ self.weights["attn_output"].T)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: list[Tensor] | None = None
    ) -> Tensor:
        """`cache`: keys and values so far, which grow; `mask` [batch, 1, n, m]: what is seen; None = all before."""
        q, k, v = self.heads(self.norm(x, "attn_norm"), cos, sin)
        if cache is not None:
            if cache:
                k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
            cache[:] = [k, v]
        out = functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None and q.shape[2] > 1, enable_gqa=True
        )
        return self.join(x, out)


class Llama(nn.Module):
    """The target, or layers of it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        reader = gguf.GGUFReader(str(path))
        self.shape = Shape(reader)
        self.tensors = {
            t.name.removesuffix(".weight"): torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).astype(np.float32))
            for t in reader.tensors
        }
        self.embedding = self.tensors["token_embd"]
        self.output = self.tensors.get("output", self.embedding)
        self.final = self.tensors["output_norm"]
        self.layers = nn.ModuleList(Layer(self.shape, self.layer_tensors(i)) for i in range(self.shape.layers))
        self.requires_grad_(False)

    def layer_tensors(self, i: int) -> dict[str, Tensor]:
        start = f"blk.{i}."
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}

    def angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        half = self.shape.head_size // 2
        angle = places[..., None].float() * self.shape.base ** (-torch.arange(half) / half)
        return angle.cos(), angle.sin()

    def head(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        h = functional.rms_norm(x, (x.shape[-1],), self.final, self.shape.epsilon)
        return h @ (self.output if tokens is None else self.output[tokens]).T


# -- data --


EXIT_LAYERS = (4, 6)


@torch.inference_mode()
def write_top(model: Llama, out: Path) -> None:
    began = time.perf_counter()
    for name in (*HELD_OUT, "learn"):
        found = np.load(out / f"{name}.npz")
        rows = []
        for k in range(sum(key.endswith(".tokens") for key in found.files)):
            final = torch.from_numpy(found[f"{k}.final"]).float()
            values, indices = (final @ model.output.T).log_softmax(-1).topk(TOP)
            rows.append(
                {
                    "tokens": torch.from_numpy(found[f"{k}.tokens"]).long(),
                    "prompt": int(found[f"{k}.prompt"]),
                    "last": final.half(),
                    "after4": torch.from_numpy(found[f"{k}.after4"]),
                    "after6": torch.from_numpy(found[f"{k}.after6"]),
                    "top": values.half(),
                    "which": indices.int(),
                }
            )
        torch.save(rows, out / f"{name}.pt")
        print(
            name,
            len(rows),
            sum(len(r["tokens"]) - r["prompt"] for r in rows),
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )


# -- drafters --


class Drafter(nn.Module):
    """Layers started from the target's, its embedding, and the rows of its output that are guessed among."""

    def __init__(self, model: Llama, drafted: Tensor, layers: list[int]) -> None:
        super().__init__()
        self.model, self.drafted = [model], drafted  # in a list: not a part whose weights are trained
        self.layers = nn.ModuleList(Layer(model.shape, model.layer_tensors(i)) for i in layers)
        self.final = nn.Parameter(model.final.clone())
        self.output = nn.Parameter(model.output[drafted].clone())

    def logits(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.final, self.model[0].shape.epsilon) @ self.output.T


class Cut(Drafter):
    """A draft model of some of the target's layers. Its guess at a place depends on the tokens alone."""

    def inputs(self, row: Row) -> Tensor:
        return self.model[0].embedding[row["tokens"]][None]

    def forward(self, row: Row) -> list[Tensor]:
        x = self.inputs(row)
        cos, sin = self.model[0].angles(torch.arange(x.shape[1]))
        for layer in self.layers:
            x = layer(x, cos, sin, None)
        return [self.logits(x[0])]


class Exit(Cut):
    """The target's state after an early layer, one layer more, the output."""

    after = EXIT_LAYERS[-1]

    def inputs(self, row: Row) -> Tensor:
        return row[f"after{self.after}"].float()[None]


class Eagle(Drafter):
    """The last state and the next token's embedding into one layer. Step s of a draft goes on from its own states.

    Keys of the steps before the first one are the target's places up to it; a step sees its own earlier steps too.
    """

    def __init__(self, model: Llama, drafted: Tensor, layers: list[int], steps: int = 3) -> None:
        super().__init__(model, drafted, layers)
        hidden = model.shape.hidden
        self.steps = steps
        self.joined = nn.Parameter(
            torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), 1)
        )  # at first: the state alone
        self.scale = nn.Parameter(torch.ones(hidden))

    def forward(self, row: Row, steps: int | None = None) -> list[Tensor]:
        """Logits: step s at place t guesses token t + 2 + s from the state at t and tokens to t + 1 + s."""
        model, layer = self.model[0], self.layers[0]
        tokens, state = row["tokens"], row["last"].float()
        n = len(tokens) - 1
        x_state, found = state[:n], []
        keys: list[tuple[Tensor, Tensor]] = []
        for step in range(steps or self.steps):
            m = n - step
            embedded = model.embedding[tokens[1 + step : 1 + step + m]]
            embedded = functional.rms_norm(embedded, (embedded.shape[-1],), self.scale, model.shape.epsilon)
            x = torch.cat((x_state[:m], embedded), -1) @ self.joined.T
            x = x[None]
            cos, sin = model.angles(torch.arange(step, step + m))
            q, k, v = layer.heads(layer.norm(x, "attn_norm"), cos, sin)
            repeat = model.shape.heads // model.shape.kv_heads
            k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
            keys.append((k, v))
            scores = (q @ keys[0][0][:, :, :m].transpose(-1, -2)) / math.sqrt(model.shape.head_size)
            scores = scores.masked_fill(~torch.ones(m, m).tril().bool(), -torch.inf)
            own = [
                ((q * key[:, :, :m]).sum(-1, keepdim=True)) / math.sqrt(model.shape.head_size) for key, _ in keys[1:]
            ]
            weights = torch.cat([scores, *own], -1).softmax(-1)
            out = weights[..., :m] @ keys[0][1][:, :, :m]
            for i, (_, value) in enumerate(keys[1:]):
                out = out + weights[..., m + i : m + i + 1] * value[:, :, :m]
            x = layer.join(x, out)
            found.append(self.logits(x[0]))
            x_state = x[0]
        return found


KINDS = ("cut2", "cut4", "exit4", "exit6", "eagle")


def make(kind: str, model: Llama, drafted: Tensor) -> Drafter:
    last = model.shape.layers - 1
    if kind == "cut2":
        return Cut(model, drafted, [0, last])
    if kind == "cut4":
        return Cut(model, drafted, [0, 1, last - 1, last])
    if kind.startswith("exit"):
        drafter = Exit(model, drafted, [last])
        drafter.after = int(kind[4:])
        return drafter
    return Eagle(model, drafted, [last])


# -- training --


def loss_of(drafter: Drafter, row: Row, index: Tensor) -> Tensor:
    """Cross entropy with the target's probabilities among the tokens that can be guessed, over the answer."""
    eagle = isinstance(drafter, Eagle)
    total = torch.zeros(())
    for step, logits in enumerate(drafter(row)):
        first = int(row["prompt"]) - 1  # the place whose target logits choose the answer's first token
        shift = step + 1 if eagle else 0  # row i of logits guesses what the target's place i + shift says
        begin = max(first - shift, 0)
        which, top = row["which"][begin + shift : begin + shift + len(logits) - begin], row["top"]
        top = top[begin + shift : begin + shift + len(which)].float()
        which = index[which.long()]
        known = which >= 0
        weight = top.exp() * known
        picked = logits[begin : begin + len(which)].log_softmax(-1).gather(-1, which.clamp(min=0))
        total = total - (weight * picked).sum(-1).mean() * 0.8**step
    return total


def train(model: Llama, out: Path, kind: str, minutes: float, rate: float) -> None:
    rows = torch.load(out / "learn.pt", weights_only=False)
    counts = torch.zeros(model.embedding.shape[0])
    for row in rows:
        counts.index_add_(
            0,
            row["which"][int(row["prompt"]) - 1 :].long().flatten(),
            row["top"][int(row["prompt"]) - 1 :].float().exp().flatten(),
        )
    drafted = counts.topk(DRAFTED).indices.sort().values
    index = torch.full((len(counts),), -1)
    index[drafted] = torch.arange(DRAFTED)
    torch.manual_seed(1)
    drafter = make(kind, model, drafted)
    parameters = [p for p in drafter.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    began, step, log = time.process_time(), 0, []
    chosen = random.Random(3)
    while (spent := time.process_time() - began) < 60 * minutes:
        share = spent / (60 * minutes)
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 30) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))
        optimiser.zero_grad()
        total = 0.0
        for row in chosen.sample(rows, 4):
            loss = loss_of(drafter, row, index) / 4
            loss.backward()
            total += float(loss)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        log.append(total)
        step += 1
        if step % 50 == 0:
            print(f"{kind} step {step}, {spent:.0f} s, loss {np.mean(log[-50:]):.3f}", flush=True)
    about = {"steps": step, "minutes": minutes, "parameters": sum(p.numel() for p in parameters)}
    torch.save({"drafted": drafted, "state": drafter.state_dict(), "of": about}, out / f"{kind}.weights.pt")
    measure_all(model, out, kind)


# -- what a drafter brings --


def measure_all(model: Llama, out: Path, kind: str) -> None:
    """Writes what a trained drafter brings, as JSON."""
    kept = torch.load(out / f"{kind}.weights.pt", weights_only=False)
    drafter = make(kind, model, kept["drafted"])
    drafter.load_state_dict(kept["state"])
    index = torch.full((model.embedding.shape[0],), -1)
    index[kept["drafted"]] = torch.arange(len(kept["drafted"]))
    found: dict[str, object] = {"of": kept.get("of")}
    for name, temperature in HELD_OUT.items():
        found[name] = measure(drafter, torch.load(out / f"{name}.pt", weights_only=False), index, temperature)
    (out / f"{kind}.json").write_text(json.dumps(found))
    print(json.dumps(found))


@torch.inference_mode()
def measure(drafter: Drafter, rows: list[Row], index: Tensor, temperature: float) -> dict[str, object]:
    """Share in common with the target at depths 1 to 3, at temperature 1, and tokens a pass (chains of CHAIN tokens).

    At temperature 0 a token is kept that the target says. Else it is kept by chance: as often as the distributions
    have in common, which is what speculative sampling keeps (Leviathan et al. 2023, corollary 3.6).
    """
    chosen = random.Random(5)
    shares: list[list[float]] = [[], [], []]
    tokens = passes = 0
    for row in rows:
        n, first = len(row["tokens"]), int(row["prompt"])
        eagle = isinstance(drafter, Eagle)
        found = drafter(row, CHAIN) if isinstance(drafter, Eagle) else drafter(row)
        chance = torch.zeros(CHAIN, n)  # [depth, place of the token that is guessed]: how likely it is kept
        for depth in range(CHAIN):
            logits = found[depth] if eagle else found[0]
            shift = depth + 2 if eagle else 1
            begin = first - shift
            which = index[row["which"][begin + shift - 1 : n - 1].long()]
            top, ours = row["top"][begin + shift - 1 : n - 1].float(), logits[begin : begin + len(which)]
            if temperature == 0.0:
                guessed = drafter.drafted[ours.argmax(-1)]
                chance[depth, first:] = (guessed == row["tokens"][first:]).float()
            else:
                chance[depth, first:] = in_common(top, which, ours, temperature)
            if depth < 3:
                shares[depth].append(float(in_common(top, which, ours, 1.0).mean()))
        place = first  # the first token of the answer is the target's own
        while place < n:
            kept = 0
            while kept < CHAIN and place + 1 + kept < n and chosen.random() < chance[kept, place + 1 + kept]:
                kept += 1
            tokens, passes, place = tokens + kept + 1, passes + 1, place + kept + 1
    return {"shares": [float(np.mean(s)) for s in shares], "tokens_a_pass": tokens / passes, "passes": passes}


def in_common(top: Tensor, which: Tensor, ours: Tensor, temperature: float) -> Tensor:
    """[places]: the share of probability that the target's top tokens have in common with a drafter's logits."""
    theirs = (top / temperature).softmax(-1) if temperature != 1.0 else top.exp()
    found = (ours / temperature).softmax(-1).gather(-1, which.clamp(min=0))
    return torch.minimum(theirs * (which >= 0), found).sum(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("what", choices=["top", "train", "measure", "table"])
    parser.add_argument("kind", nargs="?", choices=KINDS)
    parser.add_argument("--minutes", type=float, default=12.0, help="of CPU time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=6e-4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "table":
        for path in sorted(options.out.glob("*.json")):
            found = json.loads(path.read_text())
            print(
                path.stem,
                found["of"],
                *(
                    f"{name}: {found[name]['tokens_a_pass']:.2f} tokens a pass, "
                    + " ".join(f"{share:.2f}" for share in found[name]["shares"])
                    for name in HELD_OUT
                ),
            )
        return
    model = Llama(options.target)
    if options.what == "top":
        write_top(model, options.out)
    elif options.what == "measure":
        measure_all(model, options.out, options.kind)
    else:
        train(model, options.out, options.kind, options.minutes, options.rate)


if __name__ == "__main__":
    main()
