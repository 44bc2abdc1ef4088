"""The archive's tables, and how older ones become them. `PRAGMA user_version` counts the steps taken.

A step is never changed once it was released; a new one is added after it.
"""

from __future__ import annotations

APPLICATION_ID = 0x4C535043
"""Tells an archive from other SQLite files ("LSPC")."""

TABLES = ("deletion", "chat", "message", "attachment", "passes", "tag", "prompt", "preset")
"""Those with rows of their own, what is pointed to first."""

_FIRST = """
CREATE TABLE deletion (id INTEGER PRIMARY KEY AUTOINCREMENT, chat INTEGER NOT NULL, message INTEGER, at REAL NOT NULL);
CREATE TABLE chat (
  id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, title TEXT NOT NULL, system TEXT NOT NULL,
  model TEXT NOT NULL, params TEXT NOT NULL, pinned INTEGER NOT NULL DEFAULT 0, unsent TEXT NOT NULL DEFAULT '',
  window_first INTEGER, window_summary TEXT NOT NULL DEFAULT '', chosen INTEGER, created REAL NOT NULL,
  used REAL NOT NULL, deletion INTEGER
);
CREATE TABLE message (
  id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, chat INTEGER NOT NULL REFERENCES chat(id), parent INTEGER,
  chosen INTEGER, role TEXT NOT NULL, content TEXT NOT NULL, reasoning TEXT NOT NULL DEFAULT '', state TEXT NOT NULL,
  note TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '', seed TEXT, sampling TEXT NOT NULL DEFAULT '{}',
  stats TEXT NOT NULL DEFAULT '{}', created REAL NOT NULL, updated REAL NOT NULL, writer TEXT, deletion INTEGER,
  UNIQUE (chat, key)
);
CREATE INDEX message_of_chat ON message(chat, deletion);
CREATE INDEX message_below ON message(parent);
CREATE INDEX message_written ON message(writer) WHERE writer IS NOT NULL;
CREATE TABLE attachment (
  message INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE, position INTEGER NOT NULL, name TEXT NOT NULL,
  content TEXT NOT NULL, PRIMARY KEY (message, position)
);
CREATE TABLE passes (
  message INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE, part INTEGER NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (message, part)
);
CREATE TABLE tag (
  chat INTEGER NOT NULL REFERENCES chat(id) ON DELETE CASCADE, tag TEXT NOT NULL, PRIMARY KEY (chat, tag)
) WITHOUT ROWID;
CREATE TABLE prompt (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE);
CREATE TABLE preset (name TEXT PRIMARY KEY, system TEXT NOT NULL, params TEXT NOT NULL);
CREATE VIRTUAL TABLE message_words USING fts5(
  content, content='message', content_rowid='id', tokenize='unicode61 remove_diacritics 2', prefix='1 2 3'
);
CREATE TRIGGER words_of_new AFTER INSERT ON message WHEN new.state <> 'streaming' BEGIN
  INSERT INTO message_words(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER words_go AFTER UPDATE OF content, state ON message
WHEN old.state <> 'streaming' AND (old.content IS NOT new.content OR new.state = 'streaming') BEGIN
  INSERT INTO message_words(message_words, rowid, content) VALUES ('delete', old.id, old.content);
END;
CREATE TRIGGER words_come AFTER UPDATE OF content, state ON message
WHEN new.state <> 'streaming' AND (old.content IS NOT new.content OR old.state = 'streaming') BEGIN
  INSERT INTO message_words(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER words_of_erased AFTER DELETE ON message WHEN old.state <> 'streaming' BEGIN
  INSERT INTO message_words(message_words, rowid, content) VALUES ('delete', old.id, old.content);
END;
"""

MIGRATIONS: list[str] = [_FIRST]
"""Step n turns version n into version n + 1."""


def statements(script: str) -> list[str]:
    """A script's statements. sqlite3's `executescript` commits what is open, so a migration cannot use it."""
    import sqlite3

    found, begun = [], ""
    for line in script.splitlines():
        begun += line + "\n"
        if line.rstrip().endswith(";") and sqlite3.complete_statement(begun):
            found.append(begun.strip())
            begun = ""
    return found
