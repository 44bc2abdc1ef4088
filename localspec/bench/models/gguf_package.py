"""The package gguf, which writes GGUF files: an optional extra, and one sentence where it is missing."""

from __future__ import annotations

from localspec.errors import UsageError

try:
    import gguf
except ImportError as error:
    raise UsageError(
        "Benchmark models are written with the package gguf, which is not installed.",
        'Install it with: pip install "localspec[bench]"',
    ) from error

__all__ = ["gguf"]
