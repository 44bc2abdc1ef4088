"""The first run: what is offered, with sizes, and with speeds where this machine was measured."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.cli import main
from localspec.llama.exact import wide
from localspec.llama.exact.wide import Limits
from localspec.machine import Place, default_threads
from localspec.models.installed.catalog import Catalog
from localspec.runtime import offered as offer
from localspec.runtime.costs import Rates
from localspec.runtime.offered import (
    HEADING,
    OFFER_ORDER,
    TINY,
    Pace,
    is_bundled,
    offered,
    offers,
    recommended,
    words,
)
from localspec.tui.screens.models import ModelItem, judged
from tests.fake_gpus import CARD, list_gpus

GB = 10**9
MEASURED = Limits(memory_rate=40e9, int8_rate=1e12)
"""A server of two cores."""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 GB, a free disk, no model installed, nothing measured."""
    monkeypatch.setattr(offer, "ram", lambda: Place("CPU", "cpu", 16 * GB))
    monkeypatch.setattr(offer, "_free_disk", lambda: 500 * GB)
    for name in ("LOCALSPEC_DATA", "LOCALSPEC_CONFIG", "LOCALSPEC_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))


def rate(text: str) -> float:
    """Tokens/s that the words name."""
    return float(text.partition(" some ")[2].partition(" tok/s")[0])


def test_a_speed_is_named_as_a_guess_until_the_machine_is_measured() -> None:
    assert offered()
    assert all(" perhaps " in text and text.endswith("tok/s") for _, text in offered())
    wide.write_limits(default_threads(), MEASURED)
    found = dict(offered())
    assert rate(found["qwen3.5-4b-dflash"]) == pytest.approx(40e9 / (4e9 * offer.BYTES_PER_PARAMETER), rel=0.35)


def test_no_speed_of_the_cpu_is_named_where_a_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    wide.write_limits(default_threads(), MEASURED)
    list_gpus(monkeypatch, CARD)
    assert all("tok/s" not in text for _, text in offered())


def test_experts_that_do_not_compute_are_not_read() -> None:
    one = {found.name: found for found in offers(Catalog.load(), Place("CPU", "cpu", 64 * GB), 500 * GB)}
    mixture, dense = one["qwen3.6-35b-a3b-mtp"], one["qwen3.8-27b-dflash2"]
    assert mixture.bytes > dense.bytes
    here = Pace(Rates.of(MEASURED), True)
    assert rate(words(mixture, here)) > 5 * rate(words(dense, here))
    assert words(mixture, None) == f"about {mixture.bytes / GB:.1f} GB, {mixture.drafter}"
    assert "tok/s" not in words(replace(mixture, read_bytes=0), here)


def test_every_offer_knows_what_it_reads() -> None:
    found = [one for name in OFFER_ORDER if (one := offer.offer_of(Catalog.load(), name)) is not None]
    assert all(0 < one.read_bytes <= one.bytes for one in found)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_chat_line_by_line_offers_models_while_there_is_only_the_bundled_pair(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_target: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal(""))
    assert main(["chat", "--plain"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert TINY in said
    rows = said[said.index(HEADING) + 1 :]
    assert [row.split()[0] for row in rows[:3]] == [name for name, _ in offered()]
    assert rows[3] == "localspec pull NAME fetches one."
    own = tmp_path / "own.gguf"
    own.write_bytes(tiny_target.read_bytes())
    assert (is_bundled(tiny_target), is_bundled(own)) == (True, False)
    assert main(["chat", "--plain", str(own)]) == 0
    assert TINY not in capsys.readouterr().err


def test_a_damaged_catalogue_offers_nothing(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[[modell]]\n", encoding="utf-8")
    assert offered() == []


def test_two_slow_cores_are_not_offered_27_billion_parameters_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer, "ram", lambda: Place("CPU", "cpu", 64 * GB))
    wide.write_limits(default_threads(), Limits(memory_rate=10e9, int8_rate=0.3e12))
    names = [name for name, _ in offered()]
    assert "qwen3.8-27b-dflash2" not in names
    assert all(rate(text) >= offer.LEAST_RATE for _, text in offered())
    assert [one.name for one in recommended(offer.pace())] == names


def test_nothing_is_offered_that_f5_would_say_does_not_fit() -> None:
    """22.8 GB were offered to a machine with 24.2 GB free, and F5 said no."""
    catalog, seen = Catalog.load(), set[str]()
    for memory in range(2 * GB, 40 * GB, GB // 10):
        place = Place("CPU", "cpu", memory, memory)
        for one in offers(catalog, place, 500 * GB):
            judged_so = judged(ModelItem(one.name, "", "hub", one.bytes), [place])
            assert judged_so.fits, (memory, one.name)
            seen.add(one.name)
    assert seen == {*OFFER_ORDER}
    hardly = judged(ModelItem("x", "", "hub", int(22.8 * GB), recommended=True), [Place("CPU", "cpu", int(24.2 * GB))])
    assert (hardly.fits, hardly.recommended) == (False, False), "where there is less free than a moment ago"


def test_list_tells_what_the_welcome_tells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert HEADING in said
    for name, text in offered():
        assert f"{name} " in said
        assert text in said
    assert main(["list", "--catalog"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    for name, text in offered():
        if name in rows:
            assert text.rpartition(", ")[2] in rows[name]
