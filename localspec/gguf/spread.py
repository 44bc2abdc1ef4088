"""How the tensors of a model go to devices, besides layer by layer: what llama.cpp calls split mode and overrides."""

from __future__ import annotations

import re
from dataclasses import dataclass

from localspec.errors import UsageError

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Names of the tensors that hold a layer's experts: llama.cpp's own expression (LLM_FFN_EXPS_REGEX)."""
CPU = "CPU"  # llama.cpp's name of the device that needs no GPU


@dataclass(frozen=True, slots=True)
class Spread:
    mode: str = "layer"
    """"layer" = whole layers, "row" = rows of each matrix, "tensor" = parts of each layer, "none" = one GPU has all."""
    overrides: tuple[tuple[str, str], ...] = ()
    """(regular expression, device): tensors whose name it fits go to that device; the first that fits counts."""

    def device_of(self, tensor: str) -> str | None:
        """The device that an override gives a tensor of this name; None = that of its layer."""
        return next((device for pattern, device in self.overrides if re.search(pattern, tensor)), None)

    def __str__(self) -> str:
        """In words; "" = layer by layer."""
        words = [] if self.mode == "layer" else [f"split by {self.mode}"]
        return ", ".join([*words, *(f"{pattern} on {device}" for pattern, device in self.overrides)])


BY_LAYER = Spread()


def spread_of(mode: str, overrides: str | None, cpu_moe: int) -> Spread:
    """`overrides`: REGEX=DEVICE, several with commas; `cpu_moe`: layers, from the first, whose experts stay on the CPU;
    -1 = all."""
    found: list[tuple[str, str]] = []
    for word in overrides.split(",") if overrides else []:
        pattern, _, device = word.strip().rpartition("=")
        if not pattern or not device:
            raise UsageError(f"override_tensor has {word!r}; it must look like REGEX=DEVICE, such as ffn_.*_exps=CPU.")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"override_tensor has {pattern!r}, which is no regular expression: {error}.") from None
        found.append((pattern, device))
    if cpu_moe < 0:
        found.append((EXPERTS, CPU))
    found += [(rf"blk\.{layer}{EXPERTS}", CPU) for layer in range(cpu_moe)]
    return Spread(mode, tuple(found))
