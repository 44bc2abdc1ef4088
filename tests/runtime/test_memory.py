"""What programs do about their memory."""

from __future__ import annotations

import gc

from localspec.runtime import memory


def test_what_is_loaded_is_not_searched_for_garbage_and_what_comes_later_is() -> None:
    gc.unfreeze()
    loaded: list[list[int]] = [[]]
    try:
        memory.settle()
        frozen = gc.get_freeze_count()
        assert frozen > 1000
        assert not any(one is loaded for one in gc.get_objects())
        later: list[list[int]] = [[]]
        memory.settle()  # another model was loaded
        assert gc.get_freeze_count() <= frozen
        assert any(one is later for one in gc.get_objects())
    finally:
        gc.unfreeze()
