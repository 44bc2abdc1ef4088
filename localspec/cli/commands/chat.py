"""`localspec chat`: the terminal chat, or with `--plain`, or without a terminal, a conversation line by line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from localspec.cli import shared
from localspec.cli.commands.mcp import add_tool_options, chosen
from localspec.cli.parser import add_engine_settings
from localspec.config import EngineSettings
from localspec.errors import LocalspecError, UsageError
from localspec.options import Options, SamplingParams
from localspec.paths import real

if TYPE_CHECKING:
    from localspec.cli.commands.line_chat import Conversation
    from localspec.llama.exact.choice import Progress
    from localspec.remote.answerer import Answerer
    from localspec.runner.child import Child
    from localspec.runtime.engine import Engine
    from localspec.server.own.serve import Here
    from localspec.tools.servers import Server
    from localspec.tools.toolbox import FolderFile


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="model or pair by name, or GGUF file; as --target")
    parser.add_argument("--plain", action="store_true", help="line by line, without screens: for screen readers, pipes")
    parser.add_argument("--new", action="store_true", help="begin a new chat, beside the tabs of last time")
    parser.add_argument("--private", action="store_true", help="keep nothing of these chats; /private leads back")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--stats", action="store_true", help="with --plain: figures after every answer")
    add_tool_options(parser)
    shared.add_endpoint_options(parser)
    add_engine_settings(parser, "chat_cache_gb")
    shared.add_process(parser)
    shared.add_model_options(parser)
    shared.add_sampling_options(parser)


def run(options: argparse.Namespace) -> int:
    if options.name is not None:
        shared.name_target(options, options.name)
        shared.check_openable(options.name)  # before a screen shows
    shared.take_listed(options)
    shared.check_endpoint_options(options, "chat_cache_gb")
    # Textual draws on standard error.
    screens = all(one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr)) and os.environ.get("TERM") != "dumb"
    options.plain = options.plain or not screens
    faults: list[str] = []
    # The screens would cover what is written before them.
    shared.take_default(options, None if options.plain else faults)
    if options.private and options.plain:
        options.corpus = "off"  # else a conversation line by line keeps nothing
    wanted = shared.wanted_of(options)  # refuse bad values before a model is loaded
    if options.plain:
        from localspec.cli.commands.line_chat import agreed, say

        found, folder = _servers(options, faults)
        for text in faults:
            say(f"localspec: {text}")
        if folder is not None and agreed(folder):
            found = folder.added(found)
        with conversation(options, wanted, found) as held:
            held.hold()
        return 0
    return _open(options, wanted, "".join(faults))


@contextmanager
def conversation(options: argparse.Namespace, wanted: Options, found: Sequence[Server]) -> Iterator[Conversation]:
    """Line by line, with the model that the options name and these servers of tools, until the block is left."""
    from localspec.cli.commands.line_chat import Conversation, loaded
    from localspec.tools.connections import Connections
    from localspec.tools.toolbox import Toolbox

    with closing(Connections(found)) as connections, closing(_answerer(options, {})) as answerer:
        facts = loaded(answerer)
        if facts.target is not None:
            shared.say_of_model(facts.target, facts.completes, options)
        toolbox = Toolbox(connections, unasked=options.yes) if found else None
        yield Conversation(answerer, facts, options, wanted, toolbox)


def _open(options: argparse.Namespace, wanted: Options, fault: str) -> int:
    """The terminal chat, until it is left; `fault`: why the chosen model does not answer."""
    os.environ.setdefault("ESCDELAY", "25")  # ms before a lone Esc counts; read by Textual when it is imported
    from localspec.chat.archive.archive import Archive
    from localspec.tui.shell.app import ChatApp
    from localspec.tui.talk.session import Preferences, Session
    from localspec.tui.widgets.dialogs import shown

    defaults, notices = asdict(SamplingParams()), list[str]()
    begin = {name: value for name, value in asdict(wanted.sampling).items() if value != defaults[name]}
    begin |= shared.given_of(options, ("seed", "max_tokens", "system"))
    begin |= {"stop": wanted.stop} if wanted.stop else {}
    try:
        liked = Preferences.load()
    except UsageError as error:
        liked, notices = Preferences(), [str(error)]
    found, folder = _servers(options, notices)
    with Archive.open() as archive:
        session = Session(
            _answerer(options, liked.engine),
            archive,
            liked,
            partial(_local, options) if options.listed or not options.endpoint else None,
            begin=begin,
            resume=not options.new,
            private=options.private,
            servers=found,
            unasked=options.yes,
            fault=fault and f"{fault} /models lists others.",
        )
        app = ChatApp(session, notices, folder)
        with shown(app.warn), nullcontext() if os.environ.get("LOCALSPEC_DEBUG") else app.kept_up():
            code = app.run()
            session.close()
    for text in app.unseen:  # what came too late for the screen
        print(f"warning: {text}", file=sys.stderr)
    if app.ended_by:
        raise LocalspecError(app.ended_by)
    return 1 if code is None else code  # None = it did not get to the point of being left


def _servers(options: argparse.Namespace, notices: list[str]) -> tuple[list[Server], FolderFile | None]:
    """Those that the options name, of the user's file, and of the folder's if they are allowed; and the folder's file,
    if the user is to be asked for it. What is wrong with a file is a notice."""
    from localspec.tools import servers
    from localspec.tools.toolbox import FolderFile

    given, own = chosen(options.tools), list[servers.Server]()
    try:
        own = servers.of_user()
    except UsageError as error:
        notices.append(str(error))
    found, folder = servers.merged(own, given), FolderFile.find(notices)
    if folder is not None and folder.path in map(real, options.tools):  # the user's own word
        folder = None
    return (folder.added(found), None) if folder is not None and folder.is_allowed else (found, folder)


def _answerer(options: argparse.Namespace, liked: dict[str, Any]) -> Answerer:
    if options.endpoint:
        from localspec.remote.asking import ServedAnswerer

        return ServedAnswerer(options.endpoint, options.model, shared.key_of(options))
    return _local(options, None, None, liked)


def _local(options: argparse.Namespace, target: str | None, draft: str | None, liked: dict[str, Any]) -> Answerer:
    """Models with the options of the command line; another target leaves the line's target, draft and heads after."""
    from localspec.models.installed.catalog import DEFAULT_PAIR
    from localspec.models.installed.installed import whole
    from localspec.runner.answering import ChildAnswerer

    other = {} if target is None else {"target": target, "draft": draft, "heads": None}
    wanted = argparse.Namespace(**{**vars(options), **other})
    name = str(wanted.target or "bundled pair").rpartition("/")[2]
    key = DEFAULT_PAIR if wanted.target is None else whole(str(wanted.target))  # loads it again, from any folder
    return ChildAnswerer(partial(_made, wanted, liked), name, key, command=options.command)


def _load(options: argparse.Namespace, liked: dict[str, Any], progress: Progress) -> Engine:
    """Loads what the options name; where they are silent, what is liked counts."""
    from localspec.runtime.engine import Engine

    engine = Engine.load(progress=progress, **_settings(options, liked))
    engine.work_when_idle()
    return engine


def _made(options: argparse.Namespace, liked: dict[str, Any]) -> Here | Child:
    """The engine, loaded by `_load` in this process, or one in a process of its own."""
    if not options.process:
        from localspec.server.own.serve import Here

        return Here(partial(_load, options, liked))
    from localspec.models.installed.installed import find
    from localspec.runner.child import Child, Load

    settings = _settings(options, liked)
    target, of_pair = find(settings.pop("target", None))
    draft, heads = settings.pop("draft", None) or of_pair, settings.pop("heads", ())
    return Child(Load(target, draft, heads, {"slots": 1} | settings))


def _settings(options: argparse.Namespace, liked: dict[str, Any]) -> dict[str, Any]:
    """Options, and preferences where an option has its default."""
    defaults, given = {field.name: field.default for field in fields(EngineSettings)}, shared.engine_settings(options)
    silent = {name: value for name, value in liked.items() if given.get(name, defaults[name]) == defaults[name]}
    settings = given | silent
    if not options.plain:
        if settings.get("corpus", "auto") == "auto":
            settings["corpus"] = "on"  # the chat keeps its answers anyway
        settings.setdefault("second_slot", True)
    return shared.fitting(options, settings)
