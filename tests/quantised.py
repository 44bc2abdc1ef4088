"""Models in other formats, written by llama.cpp's quantiser."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from localspec.errors import LocalspecError, ModelFileError, UsageError
from localspec.gguf import FILE_TYPES
from localspec.llama.library import lib
from localspec.llama.model import check_text_model
from localspec.machine import default_threads
from localspec.paths import new_mode


def quantize(source: str | Path, destination: str | Path, type_name: str, threads: int = 0) -> Path:
    """Writes `source` (best F32, F16 or BF16: quantised ones lose quality twice) with its weights in another format of
    `FILE_TYPES` (any case), whole or not at all; returns `destination`. `threads` 0 = one per physical core. Raises
    UsageError, ModelFileError, LocalspecError: an unknown type; a bad source, or llama.cpp cannot quantise it; the
    destination cannot be written."""
    numbers = {name: number for number, name in FILE_TYPES.items()}
    if type_name.upper() not in numbers:
        raise UsageError(f"there is no quantisation {type_name!r}; known are {', '.join(numbers)}.")
    source, destination = check_text_model(source).path, Path(destination)
    api = lib.api()
    params = api.llama_model_quantize_default_params()
    params.ftype = numbers[type_name.upper()]
    params.nthread = threads or default_threads()
    params.allow_requantize = True
    try:
        handle, name = tempfile.mkstemp(dir=destination.parent, prefix=destination.name, suffix=".tmp")
        os.close(handle)
    except OSError as error:
        raise LocalspecError(f"{destination} cannot be written: {error.strerror}.") from error
    try:
        mark = lib.log.mark()
        if api.llama_model_quantize(os.fsencode(source), os.fsencode(name), params):
            reason = lib.log.reason(mark) or "it gave no reason"
            raise ModelFileError(f"llama.cpp cannot quantise {source} to {type_name}: {reason}.")
        os.chmod(name, new_mode())
        os.replace(name, destination)
    finally:
        if os.path.exists(name):
            os.unlink(name)
    return destination
