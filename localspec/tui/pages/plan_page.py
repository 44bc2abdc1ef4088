"""What a pull would do, for people: files, whether they fit each other, memory and disk."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from localspec.chat.plain_text import one_line
from localspec.models.hub.hub import Hub
from localspec.models.hub.part import Part
from localspec.models.hub.pull import Plan
from localspec.tui.text.plots import amount


def plan_page(plan: Plan, hub: Hub) -> Content:
    """The plan. Looks at files on disk; a few milliseconds."""
    lines: list[Content] = []
    for part in plan.parts:
        lines += _part_lines(part, hub)
    if plan.match is not None:
        lines.append(_line("pair", plan.match.verdict, "$success" if plan.match.fits else "$error"))
        lines += [_line("", f"note: {warning}") for warning in plan.match.warnings]
    elif plan.parts[0].role == "target" and not any(one.taken for one in plan.drafters):
        lines.append(_line("pair", "no draft model comes with it; prompt lookup guesses alone"))
    lines.append(_line("memory", plan.memory.sentence(), "$success" if plan.memory.fits else "$warning"))
    lines += [_line("", note) for note in plan.notes]
    lines += [_line("drafter", one.line(), "$success" if one.taken else "") for one in plan.drafters]
    todo = f"{amount(plan.missing_bytes)} to load" if plan.missing_bytes else "nothing to load, all of it is here"
    lines.append(_line("disk", f"{todo}, {amount(plan.free_bytes)} free in {plan.folder}"))
    return Content("\n").join(lines)


def _part_lines(part: Part, hub: Hub) -> list[Content]:
    have = part.choice.size - part.missing(hub)
    here = f", {amount(have)} of it here already" if have else ""
    commit = f", commit {part.listing.commit[:12]}" if part.listing else ""
    licence = f", licence {part.licence}" if part.licence else ""
    gated = ", gated: its terms must be accepted on the hub" if part.listing is not None and part.listing.gated else ""
    quant = part.choice.quant or part.header.quantisation
    return [
        _line(part.role, f"{part.name}  {amount(part.choice.size)}{here}", "bold"),
        _line("", f"{part.header.architecture}, {quant}{commit}{licence}{gated}"),
    ]


def _line(label: str, text: str, style: str = "") -> Content:
    parts: list[Any] = [(f"{label:7} ", "dim"), (one_line(text), style) if style else one_line(text)]
    return Content.assemble(*parts)
