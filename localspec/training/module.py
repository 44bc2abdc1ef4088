"""The draft model in PyTorch: layers of the target that learn, its embedding, and an output of few tokens.

Parameters have the names of GGUF's tensors, and compute what llama.cpp computes with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from localspec.drafters.cut.layers import SLOWER, Shape, Weights
from localspec.drafters.cut.part import Part
from localspec.types import Float32Array


def _key(name: str) -> str:
    """The name of a tensor as PyTorch takes it: without dots."""
    return name.replace(".", "/")


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, halves: bool) -> Tensor:
    """Rotary positions: x [..., n, head_size]; cos and sin [n, head_size / 2]."""
    a, b = x.chunk(2, -1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = (a * cos - b * sin, a * sin + b * cos)
    return torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)


class Layer(nn.Module):
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


class DraftModel(nn.Module):
    """What is trained. The embedding is the target's and stays as it is."""

    embedding: Tensor
    turns: Tensor

    def __init__(self, shape: Shape, weights: Weights, part: Part, layers: Sequence[int]) -> None:
        """Starts as the target's own layers, of these numbers, one after the other."""
        super().__init__()
        self.shape = shape
        self.register_buffer("embedding", torch.tensor(weights.rows("token_embd.weight", part.ids)), persistent=False)
        turns = shape.rope_base ** (-torch.arange(shape.head_size // 2) / (shape.head_size // 2))
        self._slower = weights.slower
        self.register_buffer(
            "turns", turns if self._slower is None else turns / torch.tensor(self._slower), persistent=False
        )
        self.layers = nn.ModuleList(Layer(shape, weights.layer(number)) for number in layers)
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
