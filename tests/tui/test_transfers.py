"""Progress of a pull: never backwards, whatever threads report in whatever order."""

from __future__ import annotations

from localspec.tui.screens.pull import Transfers
from localspec.tui.widgets.meter import amount


def test_files_and_all_together() -> None:
    transfers = Transfers(missing_bytes=300)
    transfers("us/a/x.gguf", 100, 200, "loading")  # 100 were there before
    transfers("us/b/y.gguf", 0, 200, "loading")
    transfers("us/a/x.gguf", 150, 200, "loading")
    transfers("us/b/y.gguf", 50, 200, "loading")
    lines = transfers.lines(80).plain.splitlines()
    assert lines[0] == "us/a/x.gguf"
    assert "150 bytes of 200 bytes" in lines[1]
    assert "in all" in lines[4]
    assert "100 bytes of 300 bytes" in lines[5]


def test_the_total_never_goes_back() -> None:
    transfers = Transfers(missing_bytes=200)
    transfers("x", 0, 200, "loading")
    transfers("x", 120, 200, "loading")
    transfers("x", 60, 200, "loading")  # a server that ignored the range
    assert "120 bytes of 200 bytes" in transfers.lines(80).plain.splitlines()[-1]
    transfers("x", 0, 200, "checking")
    assert "120 bytes of 200 bytes" in transfers.lines(80).plain.splitlines()[-1]
    assert "checking" in transfers.lines(80).plain


def test_speed_and_time_left() -> None:
    transfers = Transfers(missing_bytes=3_000_000)
    transfers("x", 0, 3_000_000, "loading")
    transfers.lines(80, now=10.0)
    transfers("x", 1_000_000, 3_000_000, "loading")
    assert "1.0 MB/s, 2.0 s left" in transfers.lines(80, now=11.0).plain


def test_waiting_for_another_program_is_said() -> None:
    transfers = Transfers()
    transfers("x", 0, 0, "waiting")
    assert "waiting for another program" in transfers.lines(80).plain
    assert "in all" not in transfers.lines(80).plain


def test_amounts() -> None:
    assert [amount(count) for count in (4_980_000_000, 639_446_688, 12_300, 7)] == [
        "4.98 GB",
        "639 MB",
        "12 kB",
        "7 bytes",
    ]
