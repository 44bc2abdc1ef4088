"""How many states a model with recurrent layers keeps, and how many slots it is served in."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.config import EngineSettings
from localspec.errors import UsageError
from localspec.gguf import read_header
from localspec.models.facts.shape import ModelShape, shape_of
from localspec.models.memory.fit import rollback
from localspec.runtime.pool import SLOTS, Pool
from tests.llama import hybrid_file
from tests.models.made_models import Made, write_model

SIZES = {"ssm.inner_size": 512, "ssm.state_size": 16, "ssm.conv_kernel": 4, "ssm.group_count": 1}


def shape(folder: Path, architecture: str) -> ModelShape:
    made = Made(architecture, more_layer=[("ssm_in.weight", (256, 1024))], metadata=SIZES)
    return shape_of(read_header(write_model(folder / f"{architecture}.gguf", made)))


def test_as_many_as_a_small_part_of_memory_holds(tmp_path: Path) -> None:
    found = shape(tmp_path, "qwen35")
    state = 4 * sum(layer.state for layer in found.layers)
    assert state > 0
    assert [rollback(found, 32 * count * state) for count in (1, 2, 3, 4, 1000)] == [1, 2, 3, 4, 4]
    assert rollback(found, 10) == 1, "one state is kept in any case"
    assert rollback(found, 0) == 4, "nothing is known of the memory"
    assert rollback(found, 10, wanted=9) == 9


@pytest.mark.parametrize("architecture", ["falcon-h1", "llama"])
def test_other_models_keep_none(tmp_path: Path, architecture: str) -> None:
    assert rollback(shape(tmp_path, architecture), 1 << 40) == 0
    assert rollback(shape(tmp_path, architecture), 1 << 40, wanted=3) == 0


@pytest.mark.parametrize("count", [0, -1, 65])
def test_what_cannot_be_kept(tmp_path: Path, count: int) -> None:
    with pytest.raises(UsageError, match=f"rollback is {count}"):
        EngineSettings(tmp_path, rollback=count)


def test_one_slot_serves_what_would_draft_nothing_in_several(tmp_path: Path) -> None:
    hybrid = str(hybrid_file.write(tmp_path / "hybrid.gguf"))
    assert Pool().slots() == SLOTS
    assert Pool(settings={"branches": 2}).slots() == 1
    assert Pool(hybrid).slots() == 1
    assert Pool(hybrid, settings={"slots": 3}).slots() == 3
