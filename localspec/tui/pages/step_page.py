"""One pass of an answer, explained: what was guessed, what the target said to it, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from textual.content import Content

from localspec.chat.plain_text import one_line
from localspec.tui.text.origin_lines import kind_of
from localspec.tui.text.passes import Guess, Pass
from localspec.tui.text.plots import bar, columns, duration

_MARKS = {"accepted": "✓", "rejected": "✗", "unreached": "-"}


def headline(passes: Sequence[Pass], index: int) -> Content:
    """Which pass this is, and what it brought, in a line."""
    one = passes[index]
    brought = len(one.emitted)
    tokens = f"{brought} token{'' if brought == 1 else 's'}"
    if one.guesses:
        who = f"{kind_of(one.drafter).name} drafted {len(one.guesses)}, accepted {one.accepted}"
    else:
        who = "plain decoding, nothing drafted"
    return Content.assemble(
        (f"Pass {index + 1} of {len(passes)}", "bold"),
        f"  {who}  width {one.width}  {tokens} in {duration(one.seconds)}",
    )


def verdict(one: Pass, width: int) -> Content:
    """The guesses of a pass with what became of each, and the target's own token; a line each."""
    fates = _fates(one)
    own = one.emitted[-1].text if one.emitted and not one.emitted[-1].depth else None
    lines: list[Content] = []
    for guess, fate in zip(one.guesses, fates, strict=True):
        lines.append(_guess_line(guess, fate))
    if own is None:
        lines.append(Content.styled("    the answer ended with an accepted guess", "dim"))
    else:
        lines.append(Content.assemble("  → ", (_quoted(own), "bold"), (f"  {_meaning(one)}", "dim")))
    return Content("\n").join(line.truncate(width, ellipsis=True) for line in lines)


def _guess_line(guess: Guess, fate: str) -> Content:
    words = {
        "accepted": "accepted: the target says it, too",
        "rejected": "rejected: the target says something else",
        "unreached": "of no use after a rejected guess",
    }
    indent = "  " * (guess.depth - 1) if guess.depth <= 12 else "  " * 12
    text = _quoted(guess.text)
    style = "bold" if fate == "accepted" else "dim strike" if fate == "rejected" else "dim"
    return Content.assemble(f"{_MARKS[fate]} {guess.depth:>2} {indent}", (text, style), (f"  {words[fate]}", "dim"))


def _fates(one: Pass) -> list[str]:
    """`accepted`, `rejected` (tried and refused) or `unreached`, node by node."""
    fates: list[str] = []
    for guess in one.guesses:
        reached = guess.parent < 0 or fates[guess.parent] == "accepted"
        fates.append("accepted" if guess.accepted else "rejected" if reached else "unreached")
    return fates


def _meaning(one: Pass) -> str:
    if not one.guesses:
        return "the target's own token"
    last = max((node for node, guess in enumerate(one.guesses) if guess.accepted), default=-1)
    if not any(guess.parent == last for guess in one.guesses):
        return "the target's own token, on top of the whole draft"
    return "the target's own token, instead of the rejected guess"


def _quoted(text: str) -> str:
    return f"“{one_line(text)}”" if text else "(no text)"


def timing(passes: Sequence[Pass], index: int, width: int) -> Content:
    """How long this pass took beside the usual one, and what it cost a token."""
    one, usual = passes[index], median(known.seconds for known in passes)
    slowest = max(known.seconds for known in passes) or 1.0
    cells = max(8, min(30, width - 46))
    each = duration(one.seconds / max(1, len(one.emitted)))
    return Content.assemble(
        ("this pass  ", "dim"),
        (bar(one.seconds / slowest, cells), "$primary"),
        f" {duration(one.seconds)}, {each} a token\n",
        ("usual pass ", "dim"),
        (bar(usual / slowest, cells), "$primary"),
        f" {duration(usual)}",
    )


def timeline(passes: Sequence[Pass], index: int, width: int) -> Content:
    """Tokens each pass brought, a column a pass, around the present one, which is marked beneath."""
    room = max(1, width)
    first = max(0, min(index - room // 2, len(passes) - room))
    shown = passes[first : first + room]
    most = max(len(one.emitted) for one in passes)
    plot = columns([len(one.emitted) for one in shown], float(most))
    marker = " " * (index - first) + "▲"
    caption = f"{len(passes)} passes, up to {most} tokens each; so far {so_far(passes, index)}"
    return Content.assemble((plot, "$primary"), "\n", (marker, "bold"), "\n", (caption[:room], "dim"))


def so_far(passes: Sequence[Pass], index: int) -> str:
    """Tokens, time and rate up to and with this pass."""
    tokens = sum(len(one.emitted) for one in passes[: index + 1])
    seconds = sum(one.seconds for one in passes[: index + 1])
    rate = f", {tokens / seconds:.0f} tok/s" if seconds else ""
    return f"{tokens} token{'' if tokens == 1 else 's'} in {duration(seconds)}{rate}"
