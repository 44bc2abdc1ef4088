"""Full-text search over all chats. Any text is a query, never a syntax.

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
        """Of any text."""
        text = re.sub(r"[\x00-\x1f]", " ", text.encode("utf-8", "replace").decode())
        words, literals, terms = [], [], []
        for found in _TERM.finditer(text):
            term = (found[1] if found[3] is None else found[3]).strip()
            if not term:
                continue
            terms.append(term)
            kinds = [unicodedata.category(character) for character in term]
            words_in_it = any(kind[0] in "LN" or kind == "Co" for kind in kinds) and not _UNSPACED.search(term)
            if not words_in_it or "#" in term or any(kind[0] == "S" for kind in kinds):  # signs matter: c++, ->, emoji
                literals.append(term)
            if words_in_it:  # that FTS5's tokenizer tells apart
                begun = found.end() == len(text) and not found[2]
                words.append('"' + term.replace('"', '""') + '"' + "*" * begun)
        return cls(" AND ".join(words), tuple(literals), tuple(terms))


def search(sql: Callable[..., sqlite3.Cursor], text: str, limit: int) -> list[Hit]:
    """Chats whose title matches, then messages, the best first."""
    query = Query.parse(text)
    if not query.terms or limit < 1:
        return []
    conditions = " AND ".join([r"title LIKE ? ESCAPE '\'"] * len(query.terms))
    rows = sql(
        f"SELECT id, title, created FROM chat WHERE deletion IS NULL AND {conditions} ORDER BY used DESC LIMIT ?",
        (*map(_pattern, query.terms), min(limit, _MOST_TITLES)),
    )
    titles = [Hit(row[0], None, row[1], "", row[1], _marks(row[1], query.terms), row[2]) for row in rows]
    return [*titles, *_messages(sql, query, limit - len(titles))]


def _pattern(literal: str) -> str:
    return "%" + re.sub(r"([\\%_])", r"\\\1", literal) + "%"


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
    hits = []
    for chat, message, title, role, text, created in rows:
        if query.match:
            snippet, marks = _marked(text)
        else:
            at = max(0, text.lower().find(query.literals[0].lower()) - _CHARACTERS_AROUND)
            end = at + 4 * _CHARACTERS_AROUND
            snippet = "…" * (at > 0) + re.sub(r"\s", " ", text[at:end]) + "…" * (end < len(text))
            marks = _marks(snippet, query.literals)
        hits.append(Hit(chat, message, title, role, snippet, marks, created))
    return hits


def _marked(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A line and the places between the marks that FTS5 put into it."""
    line, start = "", None
    marks: list[tuple[int, int]] = []
    for piece in re.split(f"([{_OPEN}{_CLOSE}])", text):
        if piece == _OPEN:
            start = len(line)
        elif piece == _CLOSE:
            if start is not None and start < len(line):
                marks.append((start, len(line)))
            start = None
        else:
            line += re.sub(r"\s", " ", piece)
    return line, tuple(marks)


def _marks(text: str, terms: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Where terms stand in a text, letter case aside, without overlaps."""
    pattern = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    return tuple(found.span() for found in re.finditer(pattern, text, re.IGNORECASE))
