"""A server of tools without the SDK, one message a line; words of its command line say what it does wrong."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "name": "add",
        "description": "Adds two numbers.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
        "annotations": {"readOnlyHint": True},
    },
    {"name": "say", "description": "Gives a text.", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "fail", "description": "Fails.", "inputSchema": {"type": "object"}},
    {"name": "die", "description": "Ends the server.", "inputSchema": {"type": "object"}},
    {"name": "hang", "description": "Gives nothing.", "inputSchema": {"type": "object"}},
    {"name": "flood", "description": "Gives 100 MB.", "inputSchema": {"type": "object"}},
    {"name": "junk", "description": "Writes lines without end.", "inputSchema": {"type": "object"}},
    {"name": "bytes", "description": "Writes what is no UTF-8.", "inputSchema": {"type": "object"}},
    {"name": "mixed", "description": "Gives an image, a link and a resource.", "inputSchema": {"type": "object"}},
    {"name": "environment", "description": "Its environment.", "inputSchema": {"type": "object"}},
]
MIXED = [
    {"type": "image", "mimeType": "image/png", "data": "QUJD" * 1000},
    {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"},
    {"type": "resource", "resource": {"uri": "file:///b.txt", "mimeType": "text/plain", "text": "the text of b"}},
]


def reply(number: Any, **result: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)


def text(number: Any, said: str, failed: bool = False) -> None:
    reply(number, content=[{"type": "text", "text": said}], isError=failed)


def tools(words: list[str]) -> list[dict[str, Any]]:
    if "many" in words:
        return [{"name": f"tool{number}", "inputSchema": {"type": "object"}} for number in range(200)]
    if "nameless" in words:
        return [*TOOLS[:1], {"name": "", "inputSchema": {"type": "object"}}]
    if "nonsense" in words:
        return [*TOOLS[:1], {"name": "odd", "inputSchema": {"type": "object", "properties": 7}}]
    return TOOLS


def call(number: Any, name: str, arguments: dict[str, Any]) -> None:
    if name == "add":
        text(number, str(arguments["a"] + arguments["b"]))
    elif name == "say":
        text(number, str(arguments.get("text", "Hello.")))
    elif name == "fail":
        text(number, "It cannot be done.", failed=True)
    elif name == "die":
        print("the last words\x1b[31m", file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "hang":
        time.sleep(600)
    elif name == "flood":
        for _ in range(100):
            sys.stdout.write("x" * 1_000_000)
        sys.stdout.write("\n")
    elif name == "junk":
        while True:
            print("junk")
    elif name == "bytes":
        sys.stdout.flush()
        body = b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "caf\xe9"}]}}\n'
        os.write(1, body % number)
    elif name == "mixed":
        reply(number, content=MIXED)
    elif name == "environment":
        text(number, "\n".join(f"{key}={value}" for key, value in sorted(os.environ.items())))


def main(words: list[str]) -> None:
    print("started", file=sys.stderr, flush=True)
    if "exit" in words:
        print("no such folder: /nowhere", file=sys.stderr, flush=True)
        sys.exit(1)
    if "child" in words:
        import subprocess

        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "child-of-a-server"])
    for line in sys.stdin:
        asked = json.loads(line)
        number, method, given = asked.get("id"), asked["method"], asked.get("params", {})
        if "silent" in words or number is None:
            continue
        if method == "initialize":
            info = {"name": "demo", "version": "1"}
            reply(number, protocolVersion=given["protocolVersion"], capabilities={"tools": {}}, serverInfo=info)
        elif method == "tools/list":
            reply(number, tools=tools(words))
        elif method == "tools/call":
            call(number, given["name"], given.get("arguments") or {})
        else:
            error = {"code": -32601, "message": "no such method"}
            print(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
