"""The report's tables: who is compared with whom, and what is said of the aims. Its measuring runs by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest

from localspec.bench.cells import make_cells
from localspec.bench.run import Run
from tests.bench.made_runs import made_run
from tests.packaging.scripts import imported

pytest.importorskip("gguf", reason="needs the extra `bench`")
NAMES = ("report", "report_tables", "report_stages", "peer_server", "bare_loop", "far_engine", "random_model")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with imported("bench", *NAMES) as found:
        yield found


def runs_of(paces: dict[str, tuple[float, ...]]) -> list[Run]:
    """{contender: seconds of its run in each round} on two prompts."""
    return [
        made_run(name, seconds, prompt=prompt, turn=turn, drafted=10, accepted=9)
        for name, all_seconds in paces.items()
        for turn, seconds in enumerate(all_seconds)
        for prompt in range(2)
    ]


def test_the_best_rival_is_chosen_on_other_rounds(modules: dict[str, ModuleType]) -> None:
    tables = modules["report_tables"]
    # each round's quickest rival was only lucky in that round; on the other rounds the other one is quicker
    (cell,) = make_cells(
        runs_of(
            {"localspec": (1.0, 1.0), "server draft 3": (1.1, 2.0), "server ngram": (2.0, 1.1), "plain": (2.0, 2.0)}
        )
    )
    found = tables.against_best(cell, "localspec", ("server draft 3", "server ngram", "server none"))
    assert found.found.value == pytest.approx(2.0)
    assert set(found.names) == {"server draft 3", "server ngram"}


def test_a_single_round_is_chosen_and_scored_on(modules: dict[str, ModuleType]) -> None:
    tables = modules["report_tables"]
    (cell,) = make_cells(runs_of({"localspec": (1.0,), "server draft 3": (1.1,), "server ngram": (2.0,)}))
    assert tables.against_best(cell, "localspec", ("server draft 3", "server ngram")).found.value == pytest.approx(1.1)
    assert tables.against_best(cell, "localspec", ("server both",)) is None
    assert tables.against_best(cell, "nobody", ("server ngram",)) is None


def test_runs_of_an_older_build_do_not_count(modules: dict[str, ModuleType]) -> None:
    old, new = made_run("localspec", 1.0), made_run("localspec", 2.0)
    older = replace(old, key=replace(old.key, settings="older"))
    assert modules["report_tables"].latest([older, new]) == [new]


def test_tables_and_verdicts(modules: dict[str, ModuleType]) -> None:
    stages, tables = modules["report_stages"], modules["report_tables"]
    main = stages.BY_NAME["main"]
    paces = dict.fromkeys(("plain", *main.bare, *main.servers), (2.0, 2.02))
    runs = runs_of({**paces, "localspec": (0.8, 0.81)})
    lines = tables.stage_table(main, "Q8_0, short context", runs)
    assert lines[0] == "Q8_0, short context"
    assert "copy" in lines[2]
    assert "2.4" in lines[2]
    assert "0/4" in lines[2]
    words = tables.verdicts({("Q8_0", "main"): runs})
    assert words[0].startswith("met: localspec without flags over bare llama.cpp")
    assert any(line.startswith("met: over plain decoding") and "2.50" in line for line in words)
    assert any(line.startswith("met: texts byte-equal") for line in words)
    assert any(line.startswith("not measured: of the best fixed choice") for line in words)


def test_what_is_missed_is_said(modules: dict[str, ModuleType]) -> None:
    stages, tables = modules["report_stages"], modules["report_tables"]
    main = stages.BY_NAME["main"]
    slow = dict.fromkeys(("plain", *main.bare, *main.servers), (1.0, 1.2))
    runs = runs_of({**slow, "localspec": (1.5, 1.3)})
    runs.append(made_run("localspec", 1.0, prompt=0, turn=2, text="another"))
    words = tables.verdicts({("Q8_0", "main"): runs})
    missed = [line for line in words if line.startswith("MISSED")]
    assert any("bare llama.cpp" in line and "copy" in line for line in missed)
    assert any("half-width" in line for line in missed)
    assert any("1 of 5 conversations differ" in line for line in missed)


def test_every_stage_has_workloads_that_are_shipped(modules: dict[str, ModuleType]) -> None:
    from localspec.bench.workloads import load_workloads

    shipped, stages = load_workloads(), modules["report_stages"].STAGES
    assert {name for stage in stages for name in stage.workloads} <= set(shipped)
    assert len({stage.seed for stage in stages}) == len(stages)  # runs of two stages are never mixed
    assert {name for group in modules["report"].GROUPS for name in group} == {stage.name for stage in stages}
