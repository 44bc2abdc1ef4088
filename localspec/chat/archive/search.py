"""Full-text search over all chats. Whatever a person types is a query, never a syntax.

Words must all occur; "quoted words" in that order; the last word may be the beginning of one. FTS5 knows words only, so
that signs, emoji and scripts written without spaces are looked for as they stand.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from localspec.chat.archive.message import Hit

_TERM = re.compile(r'"([^"]*)("?)|([^\s"]+)')
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
"""Thai, Lao, Burmese, Khmer, Kana and Han."""
_OPEN, _CLOSE = "\x02", "\x03"
_MOST_TITLES = 10
_CHARACTERS_AROUND = 40
"""Characters before a match in a snippet."""
_LIVE = "message.deletion IS NULL AND chat.deletion IS NULL"


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for."""

    match: str
    """FTS5's expression; "" = no words."""
    literals: tuple[str, ...]
    """Texts that must occur as they stand, letter case aside."""
    terms: tuple[str, ...]
    """All of it, for titles."""

    @classmethod
    def parse(cls, text: str) -> Query:
        """Of what somebody typed."""
        text = re.sub(r"[\x00-\x1f]", " ", text.encode("utf-8", "replace").decode())
        words, literals, terms = [], [], []
        for found in _TERM.finditer(text):
            term = (found[1] if found[3] is None else found[3]).strip()
            if not term:
                continue
            terms.append(term)
            if _is_literal(term):
                literals.append(term)
            if any(map(_is_letter, term)) and not _UNSPACED.search(term):
                begun = found.end() == len(text) and not found[2]
                words.append('"' + term.replace('"', '""') + '"' + "*" * begun)
        return cls(" AND ".join(words), tuple(literals), tuple(terms))


def _is_letter(character: str) -> bool:
    """Whether FTS5's tokenizer takes it as part of a word."""
    return unicodedata.category(character)[0] in "LN" or unicodedata.category(character) == "Co"


def _is_literal(term: str) -> bool:
    """Whether signs in it matter (c++, ->, emoji), or it has no words that FTS5 could tell apart."""
    if _UNSPACED.search(term) or not any(map(_is_letter, term)):
        return True
    return any(unicodedata.category(character)[0] == "S" or character == "#" for character in term)


def search(sql: Callable[..., sqlite3.Cursor], text: str, limit: int) -> list[Hit]:
    """Chats whose title matches, then messages, the best first."""
    query = Query.parse(text)
    if not query.terms or limit < 1:
        return []
    titles = _titles(sql, query, min(limit, _MOST_TITLES))
    return [*titles, *_messages(sql, query, limit - len(titles))]


def _pattern(literal: str) -> str:
    return "%" + re.sub(r"([\\%_])", r"\\\1", literal) + "%"


def _titles(sql: Callable[..., sqlite3.Cursor], query: Query, limit: int) -> list[Hit]:
    conditions = " AND ".join([r"title LIKE ? ESCAPE '\'"] * len(query.terms))
    rows = sql(
        f"SELECT id, title, created FROM chat WHERE deletion IS NULL AND {conditions} ORDER BY used DESC LIMIT ?",
        (*map(_pattern, query.terms), limit),
    )
    return [Hit(row[0], None, row[1], "", row[1], _marks(row[1], query.terms), row[2]) for row in rows]


def _messages(sql: Callable[..., sqlite3.Cursor], query: Query, limit: int) -> list[Hit]:
    values: dict[str, str | int] = {"match": query.match, "limit": limit}
    conditions = [_LIVE, "message.state <> 'streaming'"]
    for at, literal in enumerate(query.literals):
        conditions.append(rf"message.content LIKE :literal{at} ESCAPE '\'")
        values[f"literal{at}"] = _pattern(literal)
    if query.match:
        found = "message_words CROSS JOIN message ON message.id = message_words.rowid"
        conditions.append("message_words MATCH :match")
        excerpt, order = "snippet(message_words, 0, char(2), char(3), '…', 16)", "rank"
    else:
        found, excerpt, order = "message", "message.content", "message.id DESC"
    rows = sql(
        f"""SELECT message.chat, message.id, chat.title, role, {excerpt}, message.created
        FROM {found} CROSS JOIN chat ON chat.id = message.chat
        WHERE {" AND ".join(conditions)} ORDER BY {order} LIMIT :limit""",
        values,
    )
    return [_hit(row, query) for row in rows]


def _hit(row: sqlite3.Row, query: Query) -> Hit:
    if query.match:
        snippet, marks = _marked(row[4])
    else:
        snippet = _excerpt(row[4], query.literals[0])
        marks = _marks(snippet, query.literals)
    return Hit(row[0], row[1], row[2], row[3], snippet, marks, row[5])


def _marked(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A line and the places between the marks that FTS5 put into it."""
    line: list[str] = []
    marks: list[tuple[int, int]] = []
    start = None
    for character in text:
        if character == _OPEN:
            start = len(line)
        elif character == _CLOSE:
            if start is not None and start < len(line):
                marks.append((start, len(line)))
            start = None
        else:
            line.append(" " if character.isspace() else character)
    return "".join(line), tuple(marks)


def _excerpt(text: str, literal: str) -> str:
    at = text.lower().find(literal.lower())
    start = max(0, at - _CHARACTERS_AROUND)
    piece = "".join(
        " " if character.isspace() else character for character in text[start : start + 4 * _CHARACTERS_AROUND]
    )
    return "…" * (start > 0) + piece + "…" * (start + 4 * _CHARACTERS_AROUND < len(text))


def _marks(text: str, terms: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Where terms stand in a text, letter case aside, without overlaps."""
    pattern = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    return tuple(found.span() for found in re.finditer(pattern, text, re.IGNORECASE))
