"""JSON inside text that is still growing: where a value ends, and what its members are, byte for byte."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_PLAIN = re.compile(r'[^"{}\[\]]*')
_STRING = re.compile(r'[^"\\]*')
_SPACE = re.compile(r"[ \t\r\n]*")


class JsonSpan:
    """Finds the end of one JSON object or array. Looks at every character once, however the text arrives."""

    def __init__(self, start: int) -> None:
        """`start`: where its opening bracket stands."""
        self._at = start
        self._depth = 0
        self._in_string = False
        self._end: int | None = None

    def end(self, text: str) -> int | None:
        """Index after its closing bracket; None = not there yet.

        Args:
            text: all of the text so far; what was passed before must be its beginning.
        """
        if self._end is not None:
            return self._end
        at = self._at
        while at < len(text):
            if self._in_string:
                at = _matched(_STRING, text, at)
                if text[at : at + 1] == "\\":
                    if at + 1 == len(text):
                        break
                    at += 2
                elif at < len(text):
                    self._in_string = False
                    at += 1
                continue
            at = _matched(_PLAIN, text, at)
            mark = text[at : at + 1]
            at += len(mark)
            if mark == '"':
                self._in_string = True
            elif mark:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    self._end = at
                    return at
        self._at = at
        return None


def members(text: str) -> dict[str, str] | None:
    """The members of a JSON object, each value as the text it has there; None = it is no JSON object."""
    found: dict[str, str] = {}
    try:
        at = skip_space(text, 0)
        if text[at : at + 1] != "{" or not isinstance(parse(text), dict):
            return None
        at = skip_space(text, at + 1)
        while text[at] != "}":
            key, at = _DECODER.raw_decode(text, at)
            start = skip_space(text, skip_space(text, at) + 1)  # after the colon
            _, at = _DECODER.raw_decode(text, start)
            found[key] = text[start:at]
            at = skip_space(text, at)
            at = skip_space(text, at + 1) if text[at] == "," else at
    except (ValueError, RecursionError):
        return None
    return found


def parse(text: str) -> Any:
    """The value of a JSON text; NaN and Infinity are no JSON, nor are numbers that no float can hold.

    Raises:
        ValueError: no JSON.
        RecursionError: too deep.
    """
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def skip_space(text: str, at: int) -> int:
    """The first index from `at` on that is no JSON white space."""
    return _matched(_SPACE, text, at)


def _matched(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_constant=_refuse)
