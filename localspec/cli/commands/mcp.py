"""`localspec mcp`: the servers of tools (Model Context Protocol) that chats may use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from localspec import paths
from localspec.chat.plain_text import plain_text
from localspec.errors import LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.tools.servers import Server


def add_tool_options(parser: argparse.ArgumentParser) -> None:
    text = "tools of a server of yours by name, or of all in a file of mcpServers; more than once for more"
    parser.add_argument("--tools", "--mcp", metavar="NAME|FILE", action="append", default=[], help=text)
    parser.add_argument("--yes", action="store_true", help="call tools without a question")


def chosen(given: Sequence[str]) -> list[Server]:
    """The servers that names and files stand for. Raises UsageError: there is no such server or file."""
    from localspec.tools import servers

    own, found = {one.name: one for one in servers.of_user()} if given else {}, list[servers.Server]()
    for name in given:
        path = paths.typed(name)
        if name not in own and not path.is_file():
            names = f"yours are {', '.join(own)}" if own else "you have none"
            raise UsageError(f"There is no server and no file {name!r}; {names}.", "`localspec mcp add` adds one.")
        found += [own[name]] if name in own else servers.read(path)
    return servers.merged(found)


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="the servers of your file, and of mcp.json in this folder")
    one = actions.add_parser("add", help="add a server to your file, such as: add time -- uvx mcp-server-time")
    one.add_argument("name", metavar="NAME", help="what to call it")
    one.add_argument("program", nargs="*", metavar="COMMAND", help="the program and its arguments, after --")
    one.add_argument("--url", default="", help="address of a server that runs already (streamable HTTP)")
    one.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="a variable of its environment")
    one.add_argument("--header", metavar="NAME=VALUE", action="append", default=[], help="a header of its requests")
    one = actions.add_parser("remove", help="take a server out of your file")
    one.add_argument("name", metavar="NAME")
    one = actions.add_parser("check", help="start servers, and list their tools")
    one.add_argument("names", nargs="*", metavar="NAME|FILE", help="default: all of your file")


def run(options: argparse.Namespace) -> int:
    from localspec.tools import servers
    from localspec.tools.toolbox import FolderFile

    own = servers.user_file()
    if options.action == "add":
        env, headers = (_pairs(given, flag) for given, flag in ((options.env, "--env"), (options.header, "--header")))
        program, *arguments = options.program or [""]
        servers.add(own, servers.Server(options.name, program, tuple(arguments), env, options.url, headers))
        print(f"{options.name} is in {own}. `localspec mcp check {options.name}` starts it once.")
    elif options.action == "remove":
        servers.remove(own, options.name)
        print(f"{options.name} is no longer in {own}.")
    elif options.action == "list":
        notices = list[str]()
        rows = [(one, str(own)) for one in servers.of_user()]
        if (folder := FolderFile.find(notices)) is not None:
            state = "allowed" if folder.is_allowed else "not allowed yet: the chat asks"
            rows += [(one, f"{folder.path}, {state}") for one in folder.servers]
        for one, where in rows:
            print(plain_text(f"{one.name:16} {one.masked().words}  ({where})"))
        for text in notices:
            print(f"localspec: {plain_text(text)}", file=sys.stderr)
        if not rows:
            print(f"There are no servers in {own}. `localspec mcp add NAME -- COMMAND` adds one.")
    else:
        return _check(chosen(options.names) if options.names else servers.of_user())
    return 0


def _check(found: Sequence[Server]) -> int:
    """Starts each, says what it has, or what failed; exit code 1 if one did."""
    from localspec.tools.connections import Connections

    if not found:
        raise UsageError("There is no server to check.", "`localspec mcp add NAME -- COMMAND` adds one.")
    failed = 0
    with closing(Connections(found)) as connections:
        for one in found:
            try:
                server = connections.start(one.name)
            except LocalspecError as error:
                failed += 1
                print(f"{one.name}: {plain_text(str(error))}", file=sys.stderr)
                continue
            head = f"{one.name}: {server.title}, {len(server.tools)} tools, started in {server.seconds:.1f} s"
            print(plain_text(head))
            for tool in server.tools:
                first = (str(tool.get("description") or "").strip().splitlines() or [""])[0]
                print(plain_text(f"  {tool['name']:24} {first[:90]}"))
    return 1 if failed else 0


def _pairs(given: Sequence[str], flag: str) -> dict[str, str]:
    wrong = next((one for one in given if not one.partition("=")[0] or "=" not in one), None)
    if wrong is not None:
        raise UsageError(f"{flag} is {wrong!r}; it must look like NAME=VALUE.")
    return {name: value for name, _, value in (one.partition("=") for one in given)}
