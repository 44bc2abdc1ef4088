"""Native functions that a plan calls keep Python's lock: nobody gets between a plan and its pass. Others let it go."""

from __future__ import annotations

import ctypes

import pytest

from localspec import native
from localspec.native.library import BRIEF, SIGNATURES, open_library

_PATH = native.find_library()


@pytest.mark.skipif(_PATH is None, reason="the native module is not built")
@pytest.mark.parametrize("name", SIGNATURES)
def test_brief_ones_keep_the_lock_and_no_others(name: str) -> None:
    assert _PATH is not None
    keeps = getattr(open_library(_PATH), name)._flags_ == ctypes.pythonapi.Py_IncRef._flags_
    assert keeps == (name in BRIEF)
