"""Native functions that a plan calls keep Python's lock: nobody gets between a plan and its pass. Long ones do not."""

from __future__ import annotations

import ctypes

import pytest

from localspec.native.kernels import KERNELS
from localspec.native.library import BRIEF, find_library


@pytest.mark.parametrize("name", BRIEF)
def test_brief_ones_keep_the_lock_and_the_same_let_it_go_where_there_is_much_to_do(name: str) -> None:
    library, keeping = KERNELS.library, ctypes.pythonapi.Py_IncRef._flags_
    brief, other = getattr(library.brief, name), getattr(library, name)
    assert (brief._flags_, other._flags_) == (keeping, ctypes.CDLL(str(find_library())).ls_abi_version._flags_)
    assert brief._flags_ != other._flags_
    assert (brief.argtypes, brief.restype) == (other.argtypes, other.restype)
