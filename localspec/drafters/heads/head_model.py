"""The weights of a head that reads what its target saw."""

from __future__ import annotations

from localspec.llama.model import Model


class HeadModel(Model):
    """Loaded like any model; llama.cpp cannot run it without its target."""

    def _check_decoder(self) -> None:
        """llama.cpp takes the matrix that fuses the target's states for an encoder."""
