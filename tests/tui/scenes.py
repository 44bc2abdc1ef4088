"""How to get to every screen, on recorded passes; for pictures. Nothing in them depends on a machine or a day."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Collapsible, Input, OptionList, Static

from localspec.chat.archive.message import Preset
from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall
from localspec.checks.doctor import Remark
from localspec.models.hub.hub import FoundRepository, Hub
from localspec.models.installed.catalog import PairEntry
from localspec.models.installed.store import Store
from localspec.remote.answerer import Facts
from localspec.tools.servers import Server
from localspec.tui.screens.help import DoctorScreen, HelpScreen
from localspec.tui.screens.history import HistoryScreen
from localspec.tui.screens.models import ModelItem, ModelsScreen
from localspec.tui.screens.pull import HELP, FindModelScreen, ImportScreen, PullScreen, Transfers
from localspec.tui.screens.race import RaceScreen
from localspec.tui.screens.settings import ParametersScreen, SettingsScreen
from localspec.tui.screens.stats import StatsScreen, StepsScreen
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.dialogs import ChoiceDialog, Line
from localspec.tui.widgets.origin_view import OriginView
from tests.tools.conftest import SCRIPT
from tests.tui.conftest import say, until
from tests.tui.recorder import CODE, MARIA
from tests.tui.replayer import Recorded, Recording

SHELF = [
    ModelItem(
        "tiny", "tiny-draft", "here", 8_400_000, "shipped with localspec", "MIT", (), True, "It fits.", 312.0, 1.42
    ),
    ModelItem("mine", "", "broken", 5_000_000_000, "mine.gguf is gone"),
    ModelItem(
        "qwen3-8b", "qwen3-0.6b-q8_0", "hub", 5_670_000_000, "a strong pair", "apache-2.0", (), True, "It should fit."
    ),
    ModelItem(
        "qwen3-14b [b]", "qwen3-0.6b-q8_0", "hub", 9_640_000_000, "larger", "apache-2.0", (), False, "It hardly fits."
    ),
    ModelItem("mistral-small-3.2-24b", "mistral-small-draft", "hub", 0, "unknown size"),
]
FINDINGS = [
    Remark(
        "GPU", "CUDA0 (a card) is idle: the target is on the CPU", "Put the target's layers on it.", "--gpu-layers -1"
    ),
    Remark("speed", "41.2 tokens/s over 12 answers, 1.62x plain decoding (estimated from passes without drafts)"),
    Remark("acceptance", "acceptance rate 0.71: 710 of 1000 guesses"),
    Remark("time", "draft 21%, verify 74%, host 5% of decoding"),
]
FOUND = [
    FoundRepository("Qwen/Qwen3-8B-GGUF", 1_204_311, False, ""),
    FoundRepository("someone/Qwen3-8B-[b]-GGUF", 20_115, True, ""),
]
MARKDOWN = """\
# Fibonacci numbers

Each is the sum of the *two* before it; the first are **0** and **1**:

```python
def fibonacci(count: int) -> list[int]:
    \"\"\"The first numbers.\"\"\"
    found = [0, 1]
    while len(found) < count:
        found.append(found[-1] + found[-2])
    return found[:count]
```

| n | value |
|---|---|
| 7 | 13 |
| 8 | 21 |

1. `fibonacci(5)` is `[0, 1, 1, 2, 3]`
2. more [in the encyclopedia](https://en.wikipedia.org/wiki/Fibonacci_sequence)
"""
"""Everything an answer may have, written by hand."""


LOG = ToolCall("1", "git_log", '{"repo_path": ".", "max_count": 3}')


async def opened(app: ChatApp, pilot: Pilot[Any], kind: type) -> Any:
    await until(pilot, lambda: isinstance(app.screen, kind))
    return app.screen


async def welcome(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await pilot.pause()


async def code(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await say(pilot, f"Repeat this text exactly: {CODE}")
    await say(pilot, MARIA)


async def markdown(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await say(pilot, "How do I compute Fibonacci numbers in Python?")


async def chat(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await say(pilot, MARIA)
    await say(pilot, "Sort these numbers: 4, 2, 9, 1")


async def origins(app: ChatApp, pilot: Pilot[Any], presses: int) -> None:
    await say(pilot, MARIA)
    await pilot.press(*["f6"] * presses)
    await until(pilot, lambda: app.screen.query(OriginView) and app.screen.query_one(OriginView).passes)


async def history(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await say(pilot, "Maria bought 12 lanterns in Lisbon")
    await pilot.press("ctrl+n")
    await until(pilot, lambda: len(app.chat_screen.panes) == 2)
    await say(pilot, "Sort these numbers: 4, 2, 9, 1")
    app.session.archive.set_tags(app.chat_screen.front.chat_id, ("numbers",))
    await pilot.press("f4")
    screen = await opened(app, pilot, HistoryScreen)
    await until(pilot, lambda: screen.query_one("#entries", OptionList).option_count == 2)


async def settings(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await pilot.press("f2")
    screen = await opened(app, pilot, SettingsScreen)
    await until(pilot, lambda: screen.query("#load-threads"))  # the last form, which follows


async def parameters(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    app.session.archive.save_preset(Preset("calm", "Be calm.", {"top_k": 5}))
    await pilot.press("f3")
    await opened(app, pilot, ParametersScreen)


async def help_(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await pilot.press("f1")
    await opened(app, pilot, HelpScreen)


async def question(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    answers = [("drop", "Leave out", "the oldest turns, for the model"), ("new", "New chat", "this one is kept")]
    app.push_screen(ChoiceDialog("The chat is longer than its context. What now?", answers))
    await opened(app, pilot, ChoiceDialog)


async def call(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    archive, chat_id = app.session.archive, app.chat_screen.front.chat_id
    asked = archive.append_user(chat_id, "What changed last in this repository?")
    writer = archive.begin_answer(asked.id, model="written by hand")
    writer.extend("I look at the log.")
    result = "commit 5a1f0c\nDate: Sat Nov 21\n\n    Counts lanterns [in] Lisbon"
    for number in range(2):
        writer.add_call(MadeCall(LOG, result, number, said=18, seconds=0.4))
    writer.extend("\n\nThe last commit counts lanterns in Lisbon.")
    writer.finish("done")
    pane = app.chat_screen.front
    await pane.transcript.show(pane.path)
    await until(pilot, lambda: len(pane.query(".call")) == 2)
    pane.query(".call").last(Collapsible).collapsed = False


async def consent(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    told: Any = SimpleNamespace(answer=None, call=LOG, server="git")
    app.chat_screen.front._ask_consent(told)
    await opened(app, pilot, ChoiceDialog)


async def tools(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    Path("server.py").write_bytes(SCRIPT.read_bytes())  # the picture has no path of this machine
    app.session.servers = [Server("demo", "python3", ("server.py",))]
    app.chat_screen.open("tools")
    await until(pilot, lambda: "they take" in str(app.screen.query_one("#scope", Static).content))


async def line(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    app.push_screen(Line("Title of this chat", "Lanterns", "a title"))
    await opened(app, pilot, Line)


async def stats(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    for text in ("Maria", "Sort", "Say", "Repeat"):
        await say(pilot, text)
    await pilot.press("f7")
    await until(pilot, lambda: isinstance(app.screen, StatsScreen) and app.screen._figures.answers == 4)


async def step_view(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await say(pilot, "Maria")
    await pilot.press("f9")
    await until(pilot, lambda: isinstance(app.screen, StepsScreen) and app.screen.passes)
    await pilot.press("d", "d")


async def race(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    await until(pilot, lambda: app.session.facts is not None)
    await pilot.press("f8")
    screen = await opened(app, pilot, RaceScreen)
    await pilot.press("enter")
    await until(pilot, lambda: screen.speedups)
    await pilot.press(*["plus"] * 6)
    await until(pilot, lambda: "Both lanes are done" in str(screen.query_one("#note").content))


async def doctor(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    app.chat_screen.open("doctor")
    await until(pilot, lambda: isinstance(app.screen, DoctorScreen) and app.screen.findings)
    screen: Any = app.screen
    screen._show(FINDINGS)


def no_hub(folder: Path) -> Hub:
    return Hub(endpoint="http://127.0.0.1:9", cache=folder / "hf")


async def models(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    screen = ModelsScreen(app.chat_screen, lambda: no_hub(folder), Store(folder / "models"))
    app.push_screen(screen)
    await until(pilot, lambda: screen.items and screen.items[0].fit)
    screen._show(SHELF)
    await pilot.press("down", "down")


async def find_model(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    app.push_screen(FindModelScreen(lambda: no_hub(folder)))
    screen = await opened(app, pilot, FindModelScreen)
    screen.query_one("#words", Input).value = "qwen3 8b"
    screen._show([PairEntry("qwen3-8b", "qwen3-8b-q4_k_m", "qwen3-0.6b-q8_0")], FOUND, HELP)


async def pull(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    app.push_screen(PullScreen(lambda: no_hub(folder), Store(folder / "models")))
    screen = await opened(app, pilot, PullScreen)
    transfers = Transfers(3_000_000_000)
    transfers("Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", 0, 2_500_000_000, "loading")
    transfers("Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf", 0, 640_000_000, "loading")
    transfers("Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", 900_000_000, 2_500_000_000, "loading")
    transfers("Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf", 640_000_000, 640_000_000, "checking")
    screen.query_one("#name", Input).value = "qwen3-8b"
    screen.query_one("#plan", Static).update(transfers.lines(70, now=0.0))
    screen.say("Loading. Esc stops; what has come is kept, and the next pull goes on there.")


async def take_in(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    app.push_screen(ImportScreen(Store(folder / "models")))
    await opened(app, pilot, ImportScreen)


Scene = Callable[[ChatApp, Pilot[Any], Path], Awaitable[None]]
SCENES: dict[str, Scene] = {
    "welcome": welcome,
    "chat": chat,
    "code": code,
    "markdown": markdown,
    "origins": lambda app, pilot, folder: origins(app, pilot, 1),
    "ghosts": lambda app, pilot, folder: origins(app, pilot, 2),
    "signs": lambda app, pilot, folder: origins(app, pilot, 3),
    "history": history,
    "settings": settings,
    "parameters": parameters,
    "help": help_,
    "question": question,
    "call": call,
    "consent": consent,
    "tools": tools,
    "line": line,
    "stats": stats,
    "steps": step_view,
    "race": race,
    "doctor": doctor,
    "models": models,
    "find": find_model,
    "pull": pull,
    "import": take_in,
}


def recording(scene: str) -> Recording:
    """What the model says in a scene."""
    if scene == "markdown":
        return Recording([Recorded.of_text(MARKDOWN)], {}, Facts("written by hand", context=4096))
    return Recording.load(scene if scene in ("code", "race") else "pair")
