"""What programs do about their memory."""

from __future__ import annotations

import gc

from localspec.runtime import memory


def test_what_is_loaded_is_not_searched_for_garbage_and_what_comes_later_is() -> None:
    gc.unfreeze()
    loaded: list[list[int]] = [[]]
    try:
        memory.settle()
        assert not any(one is loaded for one in gc.get_objects())
        later: list[list[int]] = [[]]
        assert any(one is later for one in gc.get_objects())
        memory.settle()  # another model was loaded
        assert not any(one is later for one in gc.get_objects())
    finally:
        gc.unfreeze()


def test_a_program_without_searches_has_them_from_its_first_model_on() -> None:
    gc.disable()
    loaded: list[list[int]] = [[]]
    try:
        memory.settle()
        assert gc.isenabled()
        assert not any(one is loaded for one in gc.get_objects())
    finally:
        gc.enable()
        gc.unfreeze()
