"""Why is it slow: findings from figures, each with its number and what mends it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.checks.doctor import Remark, examine_answers, examine_context, examine_machine_state, examine_use
from localspec.runtime.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load() as loaded:
        yield loaded


def answer(**changes: Any) -> dict[str, Any]:
    """Stats of a healthy answer, with changes."""
    return {
        "generated_tokens": 100,
        "passes": 40,
        "drafted": 100,
        "accepted": 70,
        "guarded_passes": 0,
        "draft_seconds": 0.1,
        "verify_seconds": 0.8,
        "host_seconds": 0.1,
        "prefill_seconds": 0.2,
        "plain_seconds": 2.0,
    } | changes


def found(*answers: dict[str, Any]) -> dict[str, Remark]:
    return {finding.name: finding for finding in examine_answers(answers)}


def test_healthy_answers_need_no_advice() -> None:
    findings = found(answer(), answer())
    assert not any(finding.advice or finding.command for finding in findings.values())
    assert "100.0 tokens/s over 2 answers, 2.00x plain decoding" in findings["speed"].value
    assert "acceptance rate 0.70: 140 of 200 guesses" in findings["acceptance"].value
    assert findings["time"].value == "draft 10%, verify 80%, host 10% of decoding"


@pytest.mark.parametrize(
    ("changes", "name", "words", "command"),
    [
        ({"plain_seconds": 0.8}, "speed", "does not pay", "--drafter none"),
        ({"guarded_passes": 30}, "speed", "Let the plan choose", "--drafter auto"),
        ({"accepted": 10}, "acceptance", "guesses this text badly", "localspec suggest"),
        ({"draft_seconds": 0.9}, "time", "Drafting takes most", "localspec suggest"),
        ({"host_seconds": 0.9}, "time", "bookkeeping", ""),
        ({"prefill_seconds": 5.0}, "prompts", "Long prompts", ""),
    ],
)
def test_each_trouble_has_its_advice(changes: dict[str, Any], name: str, words: str, command: str) -> None:
    finding = found(answer(**changes))[name]
    assert words in finding.advice
    assert finding.command.startswith(command)
    assert bool(finding.command) == bool(command)


def test_nothing_is_concluded_from_too_little() -> None:
    assert not found(answer(generated_tokens=10, plain_seconds=0.5))["speed"].advice
    assert not found(answer(drafted=10, accepted=0))["acceptance"].advice
    assert "nothing was drafted" in found(answer(drafted=0, accepted=0))["acceptance"].value
    assert "not known" in found(answer(plain_seconds=0))["speed"].value
    plain = found(answer(drafted=0, accepted=0, plain_seconds=0.5))["speed"]
    assert plain.value == "100.0 tokens/s over 1 answers; plain decoding, nothing was drafted"
    assert not plain.advice
    assert "1.50x plain" in found(answer(drafted=0, plain_seconds=0.5), answer())["speed"].value
    assert list(found()) == ["speed"]
    assert list(found({"generated_tokens": None})) == ["speed"]


def test_a_long_chat_explains_slower_passes() -> None:
    costs = {128: {1: 0.02, 4: 0.03}, 3584: {1: 0.04}}
    (finding,) = examine_context(costs, 3000)
    assert "2.0 times" in finding.value
    assert finding.advice
    assert not list(examine_context(costs, 200))
    assert not list(examine_context(costs, 0))
    assert not list(examine_context({128: {1: 0.02}}, 3000))


def state(system: Path, **options: Any) -> dict[str, Remark]:
    free, total = options.pop("memory", (8 << 20, 16 << 20))
    written(system / "proc/meminfo", f"MemTotal: {total} kB\nMemAvailable: {free} kB")
    load = options.pop("load", 0.1)
    return {one.name: one for one in examine_machine_state(root=system, load=load, **options)}


def test_a_quiet_machine_is_well(tmp_path: Path) -> None:
    findings = state(tmp_path, model_bytes=1 << 30)
    assert not any(finding.advice for finding in findings.values())
    assert "8.0 of 16.0 GiB free" in findings["memory"].value


def test_other_programs_and_little_memory_are_said(tmp_path: Path) -> None:
    assert "Other programs" in state(tmp_path, load=999.0)["load"].advice
    small = 100 << 10, 4 << 20
    assert "Little memory" in state(tmp_path, memory=small)["memory"].advice
    assert "larger than memory" in state(tmp_path, memory=small, model_bytes=5 << 30)["memory"].advice


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.mark.parametrize(
    ("kind", "status", "scope", "said"),
    [
        ("Battery", "Discharging", "", True),
        ("Battery", "Charging", "", False),
        ("Battery", "Discharging", "Device", False),  # a mouse
        ("Mains", "Discharging", "", False),
    ],
)
def test_a_battery_is_said(tmp_path: Path, kind: str, status: str, scope: str, said: bool) -> None:
    battery = tmp_path / "sys" / "class" / "power_supply" / "BAT0"
    written(battery / "type", kind)
    written(battery / "status", status)
    if scope:
        written(battery / "scope", scope)
    assert ("power" in state(tmp_path)) == said


@pytest.mark.parametrize(
    ("governor", "driver", "bad"),
    [("powersave", "acpi-cpufreq", True), ("powersave", "intel_pstate", False), ("performance", "acpi-cpufreq", False)],
)
def test_a_lazy_clock_is_said(tmp_path: Path, governor: str, driver: str, bad: bool) -> None:
    cpu = tmp_path / "sys" / "devices" / "system" / "cpu" / "cpu0" / "cpufreq"
    written(cpu / "scaling_governor", governor)
    written(cpu / "scaling_driver", driver)
    assert bool(state(tmp_path)["clock"].advice) == bad


def test_the_models_in_use(engine: Engine) -> None:
    """The bundled pair, with its draft model and as if it had none."""
    assert not [finding for finding in examine_use(engine) if finding.advice]
    alone: Any = SimpleNamespace(
        loaded=engine.loaded, settings=SimpleNamespace(draft=None, gpu_layers=0, draft_gpu_layers=0)
    )
    (finding,) = (finding for finding in examine_use(alone) if finding.advice)
    assert "only prompt lookup" in finding.value
    word = shlex.split(finding.command)[-1]
    assert Path(word).samefile(engine.loaded.model.path), "whatever folder it is run in"
