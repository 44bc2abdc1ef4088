"""Has the draft model learn what the target found likely, for so many seconds, with a checkpoint every two minutes.

It stands here in PyTorch: layers of the target that learn, its embedding, and an output of few tokens. Parameters have
the names of GGUF's tensors, and compute what llama.cpp computes with them.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from localspec import paths
from localspec.drafters.cut import SLOWER, Shape, VocabPart, Weights
from localspec.errors import LocalspecError, ModelFileError
from localspec.training.answers import BATCH, LONGEST, TeacherAnswer
from localspec.types import Float32Array


def _key(name: str) -> str:
    """The name of a tensor as PyTorch takes it: without dots."""
    return name.replace(".", "/")


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, halves: bool) -> Tensor:
    """Rotary positions: x [..., n, head_size]; cos and sin [n, head_size / 2]."""
    a, b = x.chunk(2, -1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = (a * cos - b * sin, a * sin + b * cos)
    return torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)


class StudentLayer(nn.Module):
    """One layer of the architectures in `target.ARCHITECTURES`."""

    def __init__(self, shape: Shape, tensors: Mapping[str, Float32Array]) -> None:
        super().__init__()
        self.shape = shape
        self.tensors = nn.ParameterDict({_key(name): nn.Parameter(torch.tensor(one)) for name, one in tensors.items()})

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [batch, n, hidden]; each place sees those before it."""
        h = self._norm(x, "attn_norm")
        q = _rotated(self._heads(h, "attn_q", self.shape.heads), cos, sin, self.shape.halves)
        k = _rotated(self._heads(h, "attn_k", self.shape.kv_heads), cos, sin, self.shape.halves)
        v = self._heads(h, "attn_v", self.shape.kv_heads)
        found = functional.scaled_dot_product_attention(
            q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True
        )
        x = x + self._times(found.transpose(1, 2).flatten(2), "attn_output")
        h = self._norm(x, "ffn_norm")
        return x + self._times(functional.silu(self._times(h, "ffn_gate")) * self._times(h, "ffn_up"), "ffn_down")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.tensors[_key(f"{name}.weight")]
        return functional.rms_norm(x.float(), (x.shape[-1],), weight, self.shape.epsilon)

    def _times(self, x: Tensor, name: str) -> Tensor:
        weight, bias = _key(f"{name}.weight"), _key(f"{name}.bias")
        return functional.linear(x, self.tensors[weight], self.tensors.get(bias))

    def _heads(self, x: Tensor, name: str, heads: int) -> Tensor:
        """[batch, heads, n, head_size]"""
        found = self._times(x, name).unflatten(-1, (heads, self.shape.head_size)).transpose(1, 2)
        return self._norm(found, f"{name}_norm") if _key(f"{name}_norm.weight") in self.tensors else found


class StudentModel(nn.Module):
    """What is trained. The embedding is the target's and stays as it is."""

    embedding: Tensor
    turns: Tensor

    def __init__(self, shape: Shape, weights: Weights, part: VocabPart, layers: Sequence[int]) -> None:
        """Starts as the target's own layers, of these numbers, one after the other."""
        super().__init__()
        self.shape = shape
        self.register_buffer("embedding", torch.tensor(weights.rows("token_embd.weight", part.ids)), persistent=False)
        turns = shape.rope_base ** (-torch.arange(shape.head_size // 2) / (shape.head_size // 2))
        self._slower = weights.slower
        self.register_buffer(
            "turns", turns if self._slower is None else turns / torch.tensor(self._slower), persistent=False
        )
        self.layers = nn.ModuleList(StudentLayer(shape, weights.layer(number)) for number in layers)
        self.norm = nn.Parameter(torch.tensor(weights.whole("output_norm.weight")))
        self.output = nn.Parameter(torch.tensor(weights.rows(weights.output, part.ids)))

    def forward(self, tokens: Tensor) -> Tensor:
        """States before the output [batch, n, hidden] of tokens of the part [batch, n]."""
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.turns
        x, cos, sin = self.embedding[tokens], angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return functional.rms_norm(x.float(), (x.shape[-1],), self.norm, self.shape.epsilon)

    def logits(self, states: Tensor) -> Tensor:
        """[m, tokens of the part] of states [m, hidden]."""
        return functional.linear(states, self.output)

    def arrays(self) -> tuple[list[dict[str, Float32Array]], dict[str, Float32Array]]:
        """float32 arrays of each layer and of the rest, under GGUF's names."""

        def plain(tensor: Tensor) -> Float32Array:
            return np.asarray(tensor.detach().float().cpu().numpy(), dtype=np.float32)

        layers = [{name.replace("/", "."): plain(one) for name, one in layer.tensors.items()} for layer in self.layers]
        rest = {"token_embd.weight": plain(self.embedding), "output.weight": plain(self.output)}
        rest["output_norm.weight"] = plain(self.norm)
        return layers, rest if self._slower is None else rest | {SLOWER: self._slower}


RATE = 1e-3  # learning rate at the start of AdamW's cosine; it ends at a twentieth
_WARM_STEPS = 30
_LENGTH_STEP, _PLACES_STEP = 64, 256
"""Tokens of a batch's rows, and its places, are filled up to multiples: PyTorch keeps code and buffers for every shape
that it met (3 GB after 300 shapes on a CPU)."""
CHECKPOINT_SECONDS = 120.0
_LOSS_SHARE = 0.04  # of a step in the running mean of the loss: some fifty steps make it
_STEPS_A_POINT = 20


@dataclass(frozen=True, slots=True)
class Example:
    tokens: Tensor  # int64[n], the last ones up to `LONGEST`
    places: Tensor  # int64[m]: where a token of the answer is guessed, from the tokens up to there
    ids: Tensor  # int64[m, TOP]: places in the part of the target's most likely tokens; 0 where they are not in it
    chances: Tensor  # float32[m, TOP]: their probabilities; 0 where they are not in the part


def example(answer: TeacherAnswer, part: VocabPart) -> Example | None:
    """How a draft model reads an answer; None if nothing of it can be guessed."""
    written = [part.pieces(int(token)) for token in answer.tokens]
    ends = np.cumsum([len(pieces) for pieces in written]) - 1
    tokens = np.array([one for pieces in written for one in pieces], dtype=np.int64)
    start = max(0, len(tokens) - LONGEST)
    places = ends[answer.prompt - 1 : -1] - start
    kept = places >= 0
    ids = part.places[answer.ids][kept]
    chances = np.exp(answer.chances[kept].astype(np.float32)) * (ids >= 0)
    if not kept.any() or answer.prompt < 1:
        return None
    return Example(
        torch.tensor(tokens[start:]),
        torch.tensor(places[kept]),
        torch.tensor(np.maximum(ids, 0).astype(np.int64)),
        torch.tensor(chances),
    )


def weight_of(answers: Sequence[TeacherAnswer], size: int) -> np.ndarray:
    """float32[size]: how likely the target found each token, summed over places, and how often prompts hold it."""
    found = np.zeros(size, dtype=np.float32)
    for one in answers:
        np.add.at(found, one.ids.ravel(), np.exp(one.chances.astype(np.float32)).ravel())
        np.add.at(found, one.tokens[: one.prompt], 1.0)
    return found


def loss_of(model: StudentModel, batch: Sequence[Example]) -> Tensor:
    """Cross entropy with the target's probabilities, as far as the part holds its tokens: the mean over all places."""
    device = model.output.device
    longest = max(len(one.tokens) for one in batch)
    longest += -longest % _LENGTH_STEP
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, one in enumerate(batch):
        tokens[row, : len(one.tokens)] = one.tokens
    places = torch.cat([row * longest + one.places for row, one in enumerate(batch)])
    count = len(places)
    filling = -count % _PLACES_STEP  # with chances of 0: these places teach nothing
    ids, chances = (torch.cat([getattr(one, name) for one in batch]) for name in ("ids", "chances"))
    places, ids, chances = (
        torch.cat([one, one.new_zeros(filling, *one.shape[1:])]).to(device) for one in (places, ids, chances)
    )
    states = model(tokens.to(device)).flatten(0, 1)[places]
    found = model.logits(states).float().log_softmax(-1).gather(-1, ids)
    return -(chances * found).sum() / count


@dataclass(slots=True)
class TrainingProgress:
    step: int = 0
    seconds: float = 0.0  # of training, over all runs
    loss: float = math.nan  # of the last steps: a running mean
    losses: list[tuple[float, float]] = field(default_factory=list)  # (seconds, running mean), every few steps

    def stepped(self, loss: float) -> None:
        self.step += 1
        self.loss = loss if math.isnan(self.loss) else self.loss + _LOSS_SHARE * (loss - self.loss)
        if self.step % _STEPS_A_POINT == 0:
            self.losses.append((self.seconds, self.loss))


class Training:
    """A model that learns from examples. What it reached is kept in `file` every two minutes and at the end."""

    def __init__(self, model: StudentModel, examples: Sequence[Example], file: Path, seconds: float) -> None:
        """Goes on from `file`, the checkpoint, if it is there; the learning rate follows the `seconds` in all."""
        self.model, self.progress = model, TrainingProgress()
        self._examples, self._file, self._seconds = examples, file, seconds
        self._trained = [one for one in model.parameters() if one.requires_grad]
        self._optimiser = torch.optim.AdamW(self._trained, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
        if not file.exists():
            return
        try:
            state: dict[str, Any] = torch.load(file, map_location=model.output.device, weights_only=True)
            model.load_state_dict(state["model"])
            self._optimiser.load_state_dict(state["optimiser"])
            losses = [(float(seconds), float(loss)) for seconds, loss in state["losses"]]
            self.progress = TrainingProgress(int(state["step"]), float(state["seconds"]), float(state["loss"]), losses)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            hint = "Start anew: localspec train ... --fresh"
            raise ModelFileError(f"{file} cannot be read: {type(error).__name__}.", hint) from None

    def run(self, until: float, told: Callable[[TrainingProgress], None]) -> None:
        """Trains until so many seconds over all runs, then keeps the checkpoint; `told` may raise after a step."""
        batches, saved, last = self._batches(), perf_counter(), perf_counter()
        try:
            while self.progress.seconds < until:
                self._step(next(batches))
                now = perf_counter()
                self.progress.seconds, last = self.progress.seconds + now - last, now
                if now - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = last = perf_counter()
                told(self.progress)
        finally:
            self.save()

    def _step(self, batch: Sequence[Example]) -> None:
        share, step = self.progress.seconds / self._seconds, self.progress.step
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
        rate = RATE * min(1.0, (step + 1) / _WARM_STEPS) * (0.05 + 0.95 * cosine)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad(set_to_none=True)
        device = self.model.output.device.type
        with torch.autocast(device, torch.bfloat16, enabled=fast_bfloat16(device)):
            loss = loss_of(self.model, batch)
        if not torch.isfinite(loss):
            raise LocalspecError(f"Training failed at step {step}: the loss is {float(loss)}.")
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        if torch.isfinite(nn.utils.clip_grad_norm_(self._trained, 1.0)):
            self._optimiser.step()
        self.progress.stepped(float(loss.detach()))

    def _batches(self) -> Iterator[list[Example]]:
        """Batches from where training stands; their order depends on the number of the step alone."""
        each = max(1, len(self._examples) // BATCH)
        while True:
            epoch, first = divmod(self.progress.step, each)
            order = list(range(len(self._examples)))
            random.Random(epoch).shuffle(order)
            for at in range(first, each):
                yield [self._examples[number] for number in order[at * BATCH : (at + 1) * BATCH]]

    def save(self) -> None:
        """Writes the checkpoint, whole or not at all; a full or read-only disk is a LocalspecError."""
        state = asdict(self.progress)
        try:
            with paths.replacing(self._file) as half:
                torch.save(state | {"model": self.model.state_dict(), "optimiser": self._optimiser.state_dict()}, half)
        except (OSError, RuntimeError) as error:  # torch says RuntimeError of a full disk
            reason = error.strerror if isinstance(error, OSError) else "the disk is full"
            raise LocalspecError(f"{self._file} cannot be written: {reason}.") from None


def fast_bfloat16(device: str) -> bool:
    """Whether matrices are multiplied faster in bfloat16: on GPUs, and on CPUs with instructions for it."""
    if device != "cpu":
        return True
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions do not tell
    return any(found.get(name) for name in ("avx512_bf16", "amx_bf16"))


def best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
