"""A second conversation is answered beside the first where that costs the first nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec.checks.doctor import examine_engine
from localspec.llama.exact import wide
from localspec.machine import Place
from localspec.options import Options
from localspec.runtime import loading
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from tests.llama import hybrid_file

pytestmark = pytest.mark.skipif(not wide.available(), reason="no wide kernels here")
HEAD = Path(__file__).parents[1] / "data" / "heads" / "tiny-medusa"


def load(engines: list[Engine], target: Path | None = None, **settings: Any) -> Engine:
    engines.append(Engine.load(target, **{"context": 512, "tuned": False, "second_slot": True, **settings}))
    return engines[-1]


def at_once(engine: Engine, *prompts: str) -> list[Generation]:
    """Answers that begin together, read to their ends."""

    def begin() -> list[Generation]:
        return [engine.generate(prompt, Options(seed=1, max_tokens=40, ignore_end=True)) for prompt in prompts]

    found = engine.on_engine_thread(begin)
    for generation in found:
        generation.text()
    return found


def test_all_else_is_as_with_one_slot(engines: list[Engine]) -> None:
    one, two = load(engines, second_slot=False), load(engines)
    context = two.loaded.context
    assert (one.loaded.context.settings.n_slots, context.settings.n_slots, two.loaded.single) == (1, 2, "")
    assert context.any_cut
    assert two.settings.longest_draft == one.settings.longest_draft
    stores = [engine.loaded.store for engine in (one, two)]
    assert len({repr(store and (store.pair, store.machine)) for store in stores}) == 1, "what is learned serves both"
    prompts = ("The owl counts 7, 8, 9,", "Sort 4, 2 and 9, then say which was last. Sort 4, 2 and")
    alone = [at_once(one, prompt)[0].tokens for prompt in prompts]
    assert [answer.tokens for answer in at_once(two, *prompts)] == alone
    assert [at_once(two, prompt)[0].tokens for prompt in prompts] == alone


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"branches": 2}, "drafts are trees"),
        ({"kernels": "repacked"}, loading.CHUNKS),
        ({"cache": "unfused"}, f"{loading.CHUNKS}, since "),
        ({"heads": [HEAD]}, "its heads"),
    ],
    ids=str,
)
def test_there_is_none_where_it_would_cost_something(engines: list[Engine], settings: dict[str, Any], why: str) -> None:
    engine = load(engines, **settings)
    alone = load(engines, **settings, second_slot=False)
    assert engine.loaded.context.settings == alone.loaded.context.settings
    assert engine.loaded.single.startswith(why)
    assert engine.loaded.exactness == alone.loaded.exactness
    (found,) = [one.value for one in examine_engine(engine) if one.name == "context"]
    assert found.startswith(f"512 tokens a conversation, one answered at a time: {why}")


def test_a_model_with_recurrent_layers_has_none(engines: list[Engine], tmp_path: Path) -> None:
    engine = load(engines, hybrid_file.write(tmp_path / "hybrid.gguf"))
    assert (engine.loaded.context.settings.n_slots, engine.loaded.context.most_nodes > 0) == (1, True)
    assert "recurrent" in engine.loaded.single


def test_memory_for_a_second_cache_is_not_taken_from_the_first(
    engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(engines)
    caches = engine.loaded.context.kv_bytes + (
        0 if engine.loaded.draft_context is None else engine.loaded.draft_context.kv_bytes
    )
    for total, slots in ((8 * caches + (1 << 20), 2), (8 * caches - (1 << 20), 1)):
        monkeypatch.setattr("localspec.runtime.loading.ram", lambda total=total: Place("CPU", "cpu", total, total))
        engine = load(engines)
        assert engine.loaded.context.settings.n_slots == slots
    assert "more than 1/8 of the memory" in engine.loaded.single


def test_several_slots_that_were_asked_for_stay(engines: list[Engine]) -> None:
    engine = load(engines, slots=3)
    assert (engine.loaded.context.settings.n_slots, engine.loaded.single) == (3, "")
    (found,) = [one.value for one in examine_engine(engine) if one.name == "context"]
    assert found == "512 tokens a conversation, 3 answered at once"
