"""Opens and writes safetensors files by the package of that name; what fails is one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.errors import LocalspecError, ModelFileError, reason
from localspec.gguf.reader import DOWNLOAD_AGAIN


def opened(path: Path) -> Any:
    """The package's `safe_open`: the file is mapped, and its header checked.

    Raises:
        ModelFileError: missing, truncated or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        text = f"{path.name} is truncated, or no safetensors file: {reason(error)}."
        raise ModelFileError(text, DOWNLOAD_AGAIN) from None


def save(path: Path, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, str] | None = None) -> None:
    """Writes a file, whole or not at all; what is there is replaced. The package writes it beside, for its owner alone,
    and renames it.

    Args:
        path: the file.
        arrays: mapped ones are never in memory as a whole.
        facts: for the header's `__metadata__`.

    Raises:
        LocalspecError: the disk is full or read-only.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # it takes others as they lie
    try:
        save_file(dense, path, dict(facts or {}))
        path.chmod(paths.new_mode())
    except (OSError, SafetensorError) as error:
        raise LocalspecError(f"{path} cannot be written: {reason(error)}.") from None
