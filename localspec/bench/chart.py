"""A benchmark as a picture: the speed of every side over plain decoding, with its interval."""

from __future__ import annotations

from pathlib import Path

from localspec.bench.report import Results, heading
from localspec.bench.sides import BASELINE
from localspec.errors import LocalspecError, UsageError

try:
    from matplotlib.figure import Figure
except ImportError:
    raise UsageError("A chart needs matplotlib, which is not installed.", 'pip install "localspec[chart]"') from None

_INCHES_A_BAR, _HEIGHT = 0.28, 4.5


def draw(results: Results, file: Path) -> None:
    """Writes a picture of a format that the file's name says: .png, .svg, .pdf.

    Raises:
        UsageError: there is no such format.
        LocalspecError: the file cannot be written.
    """
    sides = list(dict.fromkeys(side for cell in results.cells for side in cell.sides if side != BASELINE))
    width = 0.8 / max(1, len(sides))
    figure = Figure(figsize=(3 + _INCHES_A_BAR * len(results.cells) * (1 + len(sides)), _HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    for number, side in enumerate(sides):
        found = [(place, cell.speedup(side)) for place, cell in enumerate(results.cells)]
        bars = [(place + (number - (len(sides) - 1) / 2) * width, one) for place, one in found if one is not None]
        doubts = [[one.value - one.low for _, one in bars], [one.high - one.value for _, one in bars]]
        axes.bar([at for at, _ in bars], [one.value for _, one in bars], width, yerr=doubts, capsize=2, label=side)
    top = max((one.largest for cell in results.cells if (one := cell.speedup(sides[0]))), default=1.0) if sides else 1.0
    axes.set_ylim(0.0, max(1.5, 1.3 * top))  # an interval of few rounds may be wider than all that was seen
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(results.cells)), [f"{cell.workload}\n{cell.temperature:g}" for cell in results.cells])
    axes.set_ylabel("speed over plain decoding")
    axes.set_xlabel("workload, temperature")
    axes.legend()
    axes.set_title("\n".join((heading(results), *results.labels)), fontsize="small", loc="left")
    try:
        figure.savefig(file)
    except OSError as error:
        raise LocalspecError(f"{file} cannot be written: {error.strerror}.") from None
    except ValueError:
        raise UsageError(f"--chart is {str(file)!r}; it must end in .png, .svg or .pdf.") from None
