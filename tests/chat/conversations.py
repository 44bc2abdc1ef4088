"""One conversation with tools, its texts given by who asks, as each family of templates is shown it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localspec.chat.reply.dialect import Dialect
from localspec.chat.reply.dialect import MarkedVocabulary as Known
from localspec.chat.reply.tool import Tool, ToolCall
from localspec.chat.turn import Message

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
FAMILIES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
SLOTS = ("system", "question", "answer", "thought", "result", "description", "property", "key", "argument", "again")
"""Where texts of people, tools and models stand."""
_MARK = re.compile(r"<[^<>\s'\"{}]{2,40}>|\[/?[A-Z_]{3,}\]")

Say = Callable[[str], str]


def source_of(family: str) -> str:
    """A template, as its model has it."""
    return (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")


def marks_in(source: str) -> list[str]:
    """What looks like a special token in a template."""
    return sorted(set(_MARK.findall(source)))


ALL_MARKS = sorted({mark for family in FAMILIES for mark in marks_in(source_of(family))})


def conversation(say: Say) -> tuple[list[Message], list[Tool]]:
    """Messages and a tool; `say` gives the text of each of `SLOTS`."""
    call = ToolCall("abcdefghi", "look_up", json.dumps({"city": say("argument")}, ensure_ascii=False))
    flags = {"type": "object", "description": "More", "additionalProperties": {"type": "boolean"}}
    properties = {"city": {"type": "string", "description": say("property")}, say("key"): flags}
    tool = Tool("look_up", say("description"), {"type": "object", "properties": properties, "required": ["city"]})
    return [
        Message("system", say("system")),
        Message("user", say("question")),
        Message("assistant", "", (call,)),
        Message("tool", say("result"), (), call.id, "look_up"),
        Message("assistant", say("answer"), reasoning=say("thought")),
        Message("user", say("again")),
    ], [tool]


def shown(vocabulary: Known, say: Say, tools: bool) -> tuple[list[Message], dict[str, Any]]:
    """What the template of a vocabulary is given: of the conversation, or of its part without tools."""
    messages, known = conversation(say)
    if not tools:
        messages = [message for message in messages if message.role != "tool" and not message.tool_calls]
    turn = Dialect(vocabulary).turn(messages, known if tools else [])
    return list(turn.messages), turn.variables
