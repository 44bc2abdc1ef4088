"""`localspec.bench.pass_times`: real passes of the bundled target, and the sums made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.bench import pass_times as reports
from localspec.bench.pass_times import PassReport, PassSettings, Point, Work, measure_passes, needed_bytes
from localspec.errors import PairError, UsageError
from localspec.gguf import read_header
from localspec.llama.exact import wide
from localspec.llama.exact.wide import LLAMA_KERNELS, Limits
from tests.drafters.mtp_files import companion

SMALL = PassSettings(widths=(1, 4), lengths=(64,), prefill=80, threads=1, rounds=2)


@pytest.fixture(scope="module")
def report(tiny_target: Path) -> PassReport:
    """A whole run."""
    return measure_passes(tiny_target, SMALL)


def test_every_point_has_a_time_of_every_round_on_every_kind_of_kernels(report: PassReport) -> None:
    assert set(report.kernels) >= set(LLAMA_KERNELS)
    assert ("wide" in report.kernels) == wide.available()
    assert bool(report.wide_reason) == (not wide.available())
    assert [(point.kind, point.length, point.width) for point in report.points] == [
        ("pass", 64, 1),
        ("pass", 64, 4),
        ("prefill", 0, 80),
    ]
    for point in report.points:
        assert set(point.seconds) == set(report.kernels)
        assert all(len(times) == 2 and min(times) > 0 for times in point.seconds.values())
    assert (report.rounds, report.interrupted) == (2, False)


def test_a_prompt_takes_longer_than_a_row(report: PassReport) -> None:
    for kernels in report.kernels:
        row, prompt = report.points[0].best(kernels), report.points[2].best(kernels)
        assert row is not None
        assert prompt is not None
        assert prompt > row


def test_the_limits_are_measured_where_our_library_is(report: PassReport) -> None:
    assert (report.limits is not None) == wide.available()
    if report.limits is not None:
        assert report.limits.memory_rate > 1e8
        assert report.limits.int8_rate > 1e8


def test_plain_data_agree_with_the_times(report: PassReport) -> None:
    data = reports.as_dict(report)
    assert data["kernels"] == list(report.kernels)
    assert set(data) == {
        "model", "quantisation", "weight_bytes", "parameters", "threads", "rounds", "prefill", "device",
        "finished_rounds", "interrupted", "kernels", "wide", "limits", "splits", "points",
    }  # fmt: skip
    for row, point in zip(data["points"], report.points, strict=True):
        for kernels in report.kernels:
            times = row[kernels]
            assert times["ms"] == 1e3 * min(point.seconds[kernels]) <= times["median_ms"]
            assert times["gb_s"] * times["ms"] * 1e6 == pytest.approx(row["read_bytes"])
            assert times["gops"] * times["ms"] * 1e6 == pytest.approx(row["operations"])
            assert ("memory_share" in times) == ("int8_share" in times) == (data["limits"] is not None)


def made_up(tiny_target: Path) -> PassReport:
    """A report with times that can be reckoned with in one's head."""
    points = [
        Point("pass", 64, 1, Work(1000, 10)),
        Point("pass", 64, 8, Work(1000, 80)),
        Point("prefill", 0, 80, Work(9, 9)),
    ]
    points[0].seconds = {"wide": [2.0, 1.0], "repacked": [2.0, 3.0], "plain": [1.5, 9.0]}
    points[1].seconds = {"wide": [2.0, 2.0], "repacked": [6.0, 7.0], "plain": [7.0, 8.0]}
    points[2].seconds = {"wide": [4.0]}
    limits = Limits(memory_rate=2000.0, int8_rate=400.0)
    return PassReport(read_header(tiny_target), SMALL, points, "avx2", "", limits, {"wide": "98"}, 1, True)


def test_ratios_and_shares(tiny_target: Path) -> None:
    narrow, broad, prefill = reports.as_dict(made_up(tiny_target))["points"]
    assert narrow["speedup"] == 1.5  # llama.cpp's better is the plain one
    assert broad["speedup"] == 3.0
    assert prefill["speedup"] is None
    assert [broad[kernels]["cost"] for kernels in ("wide", "repacked", "plain")] == [2.0, 3.0, pytest.approx(14 / 3)]
    assert "cost" not in prefill["wide"]
    assert broad["wide"]["memory_share"] == 0.25
    assert broad["wide"]["int8_share"] == 0.1
    assert "plain" not in prefill


def test_the_tables_show_what_there_is(tiny_target: Path) -> None:
    report = made_up(tiny_target)
    times, rates = reports.tables(report)
    assert times.columns == (
        "context", "width", "localspec ms", "llama.cpp ms", "not repacked ms", "speedup", "localspec cost",
        "llama.cpp cost",
    )  # fmt: skip
    assert times.rows[1] == ("64", "8", "2000.00", "6000.00", "7000.00", "3.00", "2.00", "4.00")
    assert times.rows[2] == ("prefill", "80", "4000.00", "-", "-", "-", "-", "-")
    assert ("localspec", "64", "8", "0.0", "0", "25%", "10%") in rates.rows
    assert len(rates.rows) == 7
    assert any("Interrupted after 1 of 2" in line for line in reports.notes(report))


def test_without_our_library_llama_cpp_alone_is_shown(tiny_target: Path) -> None:
    report = made_up(tiny_target)
    report.wide_isa, report.wide_reason, report.limits = "", "it is not there.", None
    times, rates = reports.tables(report)
    assert times.columns == ("context", "width", "llama.cpp ms", "not repacked ms", "llama.cpp cost")
    assert times.rows[1] == ("64", "8", "6000.00", "7000.00", "4.00")
    assert "of memory" not in rates.columns
    assert "it is not there." in reports.notes(report)[0]


def test_an_interruption_keeps_what_was_measured(tiny_target: Path) -> None:
    def stop(what: str, _: float) -> None:
        if "width 4" in what:
            raise KeyboardInterrupt

    report = measure_passes(tiny_target, SMALL, stop)
    assert report.interrupted
    assert report.rounds == 0
    assert [bool(point.seconds) for point in report.points] == [True, False, False]
    assert reports.tables(report)[0].rows[1][2] == "-"


def test_an_interruption_before_the_first_time_is_one(tiny_target: Path) -> None:
    def stop(what: str, _: float) -> None:
        if "round" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_passes(tiny_target, SMALL, stop)


@pytest.mark.parametrize(
    "wrong", [{"widths": ()}, {"widths": (0,)}, {"widths": (513,)}, {"lengths": (1,)}, {"prefill": -1}, {"rounds": 0}]
)
def test_impossible_settings(wrong: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        PassSettings(**wrong)  # type: ignore[arg-type]


def test_memory_is_that_of_weights_and_caches(tiny_target: Path) -> None:
    header = read_header(tiny_target)
    cells = 80 + 1 + 4  # the prompt, the token behind it, the widest pass
    cache = cells * header.n_layers * 2 * 2 * header.number("attention.head_count_kv") * 64
    assert needed_bytes(header, SMALL, 3) == 3 * (header.tensor_bytes + cache)


def test_a_head_has_no_passes_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(PairError, match=r"mtp\.gguf cannot be a target: it is a multi-token-prediction head"):
        measure_passes(companion(tmp_path / "mtp.gguf"), SMALL)


def test_a_device_is_timed_alone(tiny_target: Path) -> None:
    settings = PassSettings(widths=(1, 2), lengths=(16,), prefill=8, rounds=1, device="CPU")
    report = measure_passes(tiny_target, settings)
    (times, _) = reports.tables(report)
    assert times.columns == ("context", "width", "CPU ms", "llama.cpp cost")
    assert all(point.best("repacked") for point in report.points)
    assert not reports.notes(report)[:-1]
