"""A model without a chat template in the chat: said when it is loaded, and it goes on with the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import Engine
from localspec.chat.prompt.prompt import MOST_TOKENS, note
from localspec.tui.shell.app import ChatApp
from tests.llama.rewritten_gguf import rewritten
from tests.tui.conftest import MakeApp, answered, asking, front, say, until


@pytest.fixture
def base(tmp_path: Path, tiny_target: Path) -> Iterator[Engine]:
    path = rewritten(tiny_target, tmp_path / "base.gguf", without=("tokenizer.chat_template",))
    with Engine.load(path, drafter="none") as engine:
        yield engine


@pytest.mark.asyncio
async def test_it_is_said_and_text_goes_on(make_app: MakeApp, base: Engine) -> None:
    answerer = asking(base, "base")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        assert app.session.facts is not None
        assert app.session.facts.completes
        assert [one.message for one in app._notifications] == [note("base")]
        await say(pilot, "Once upon")
        await answered(pilot)
        await say(pilot, " and then")
        await answered(pilot)
        path = front(app).path
        assert [one.state for one in path[1::2]] == ["done", "done"]
        text = "".join(one.content for one in path[:3])
        last = path[3].stats
        assert last["prompt_tokens"] == len(base.tokenize(text))
        assert 0 < last["generated_tokens"] <= MOST_TOKENS
        app.session.archive.update_chat(front(app).chat_id, system="Be brief.")
        front(app).composer.put(" more")
        await pilot.press("enter")
        await until(pilot, lambda: refused(app, "a system message has no place"))
    answerer.close()


def refused(app: ChatApp, words: str) -> bool:
    """Whether a sentence is shown, in a note or with the answer."""
    return any(words in one.message for one in app._notifications) or words in front(app).path[-1].note
