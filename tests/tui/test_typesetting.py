"""Markdown set into lines: at every width all of it is there, and no line is longer than that."""

from __future__ import annotations

import random

import pytest
from rich.cells import cell_len
from textual.color import Color
from textual.style import Style

from localspec.tui.shell.app import ChatApp
from localspec.tui.text.typesetting import LEAST, TextStyles, Typesetter
from tests.tui.conftest import MakeApp, say
from tests.tui.scenes import MARKDOWN

WIDTHS = (LEAST, 9, 12, 15, 20, 30, 40, 52, 64, 80)
DEEP = """\
> quoted
>
> > deeper, which goes on for a while
> >
> > > deepest `code`

- one
  - two
    - three
      - four, whose words are wrapped

        ```
        code = within_a_list
        ```

123456789. numbered
123456790. again

| name | what it is | how much | when |
|---|---|--:|---|
| antidisestablishmentarianism | 漢字かな | 12 | |
| b | c | 3 | d |

```python
abc = '漢字かな漢字かな漢字かな漢字かな漢字かな漢字かな' * 1234567890  # and on and on it goes
```

A [link](https://example.org) and a_very_long_word_that_no_narrow_screen_holds_in_one_line.
"""
"""What takes from the width, and what is longer than narrow screens."""


def letters(text: str) -> list[str]:
    """What must not be lost, in no order: tables are set in columns."""
    return sorted(letter for letter in text if letter.isalnum())


async def set_lines(make_app: MakeApp, text: str, widths: tuple[int, ...]) -> dict[int, list[str]]:
    """Its lines at several widths; a `TextStyles` needs an app."""
    app: ChatApp = make_app("unused")
    async with app.run_test():
        setter = Typesetter(TextStyles(Style(background=Color(0, 0, 0), foreground=Color(255, 255, 255))))
        return {width: ["".join(part.text for part in line) for line in setter.lines(text, width)] for width in widths}


@pytest.mark.asyncio
@pytest.mark.parametrize("text", [MARKDOWN, DEEP], ids=["markdown", "deep"])
async def test_every_width_holds_all_of_it(text: str, make_app: MakeApp) -> None:
    found = await set_lines(make_app, text, (*WIDTHS, 200))
    whole = letters("".join(found.pop(200)))
    for width, lines in found.items():
        assert all(cell_len(line) <= width for line in lines), width
        shown = letters("".join(lines))
        missing = [letter for letter in set(whole) if shown.count(letter) < whole.count(letter)]
        assert not missing, (width, missing, lines)


@pytest.mark.asyncio
async def test_single_line_breaks_are_kept(make_app: MakeApp) -> None:
    found = await set_lines(make_app, "Roses are red,\nviolets are blue\n\n- one\n  more\n", (40,))
    assert [line.rstrip() for line in found[40]] == ["Roses are red,", "violets are blue", "", " • one", "   more"]


@pytest.mark.asyncio
async def test_any_blocks_within_blocks_fit(make_app: MakeApp) -> None:
    chance = random.Random(46)
    text = ""
    for _ in range(150):
        prefix = "".join(chance.choice(("> ", "- ", "7. ", "  ", "    ")) for _ in range(chance.randrange(7)))
        text += (
            prefix
            + chance.choice(("word " * 9, "```", "# head", "| a | b |\n|--|--|\n| c | d |", "漢" * 40, ""))
            + "\n"
        )
    for width, lines in (await set_lines(make_app, text, (1, 2, 5, *WIDTHS))).items():
        assert lines
        assert all(cell_len(line) <= width for line in lines), width


@pytest.mark.asyncio
async def test_the_chat_wraps_at_twenty_columns(make_app: MakeApp) -> None:
    app = make_app("Some quite ordinary words, the last of which is **conspicuously** long.")
    async with app.run_test(size=(20, 40)) as pilot:
        await say(pilot, "Go")
        shown = "".join(strip.text for strip in app.screen._compositor.render_strips())
        for word in ("Some", "quite", "ordinary", "words,", "last", "which"):
            assert word in shown
