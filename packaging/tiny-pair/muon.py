"""Muon for the matrices, AdamW for embeddings and norms, as one small class."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration on a stack of matrices of one shape (rows <= columns)."""
    a, b, c = COEFFICIENTS
    x = stack.to(torch.bfloat16)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.float()
    return result


class Optimiser:
    """One step for the whole model; learning rates are handed in each time."""

    def __init__(
        self, model: nn.Module, momentum: float = 0.95, decay: float = 0.01, tables: Collection[str] = ("embedding",)
    ) -> None:
        self.momentum = momentum
        self.decay = decay
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        rest: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and name not in tables:
                rows, columns = weight.shape
                self.groups.setdefault((min(rows, columns), max(rows, columns)), []).append(weight)
            else:
                rest.append(weight)
        self.buffers = {key: torch.zeros(len(group), *key) for key, group in self.groups.items()}
        for key, group in self.groups.items():
            self.buffers[key] = self.buffers[key].to(group[0].device)
        self.adam = torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)

    @torch.no_grad()
    def step(self, matrix_rate: float, other_rate: float) -> None:
        """Apply the gradients and clear them."""
        for key, group in self.groups.items():
            grads = torch.stack([self._wide(p.grad) for p in group if p.grad is not None])
            buffer = self.buffers[key]
            buffer.lerp_(grads, 1 - self.momentum)
            update = orthogonalise(grads.lerp(buffer, self.momentum))
            for weight, piece in zip(group, update, strict=True):
                rows, columns = weight.shape
                weight.mul_(1 - matrix_rate * self.decay)
                scale = max(1.0, rows / columns) ** 0.5
                weight.add_(piece if rows <= columns else piece.mT, alpha=-matrix_rate * scale)
                weight.grad = None
        for options in self.adam.param_groups:
            options["lr"] = other_rate
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    @staticmethod
    def _wide(grad: Tensor) -> Tensor:
        return grad if grad.shape[0] <= grad.shape[1] else grad.mT

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"buffers": self.buffers, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        for key, value in state["buffers"].items():
            self.buffers[key].copy_(value)
        self.adam.load_state_dict(state["adam"])
