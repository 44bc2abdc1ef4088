"""Random use of the archive against a small model of it in plain Python: every path and every search agrees."""

from __future__ import annotations

import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import moved
from localspec.chat.turn import PARAGRAPH, MadeCall
from tests.chat.conftest import made


@dataclass
class Node:
    """A message as the model knows it."""

    parent: int | None
    word: str
    role: str
    children: list[int] = field(default_factory=list)
    chosen: int | None = None
    deletion: int | None = None
    calls: tuple[MadeCall, ...] = ()


class ArchiveMachine(RuleBasedStateMachine):
    """One chat, its tree, its deletions."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.file = Path(self._folder.name) / "chats.sqlite3"
        self.archive = Archive.open(self.file)
        self.nodes: dict[int | None, Node] = {None: Node(None, "", "")}
        self.deletions: dict[int, int] = {}
        self.words = 0

    def teardown(self) -> None:
        self.archive.close()
        self._folder.cleanup()

    @initialize()
    def begin(self) -> None:
        self.chat = self.archive.new_chat()

    # The model

    def live(self) -> list[int]:
        return [key for key, node in self.nodes.items() if key is not None and node.deletion is None]

    def path(self) -> list[int]:
        found: list[int] = []
        at: int | None = None
        while children := [child for child in self.nodes[at].children if self.nodes[child].deletion is None]:
            chosen = self.nodes[at].chosen
            at = chosen if chosen in children else children[-1]
            found.append(at)
        return found

    def added(self, key: int, parent: int | None, word: str, role: str, calls: tuple[MadeCall, ...] = ()) -> None:
        self.nodes[key] = Node(parent, word, role, calls=calls)
        self.nodes[parent].children.append(key)
        self.lead(key)

    def lead(self, key: int) -> None:
        at: int | None = key
        while at is not None:
            self.nodes[self.nodes[at].parent].chosen = at
            at = self.nodes[at].parent

    def word(self) -> str:
        self.words += 1
        return f"word{self.words}x"

    def below(self, key: int) -> list[int]:
        return [key, *(far for child in self.nodes[key].children for far in self.below(child))]

    # What a user does

    @rule(at_end=st.booleans(), data=st.data())
    def say(self, at_end: bool, data: st.DataObject) -> None:
        word, path = self.word(), self.path()
        if at_end:
            parent = path[-1] if path else None
            message = self.archive.append_user(self.chat.id, word)
        else:
            parent = data.draw(st.sampled_from([None, *self.live()]))
            message = self.archive.append_user(self.chat.id, word, parent=parent)
        self.added(message.id, parent, word, "user")

    @precondition(lambda self: self.live())
    @rule(data=st.data(), state=st.sampled_from(["done", "stopped", "error"]), turns=st.integers(0, 2))
    def answer(self, data: st.DataObject, state: str, turns: int) -> None:
        parent, word = data.draw(st.sampled_from(self.live())), self.word()
        writer = self.archive.begin_answer(parent)
        writer.extend(word)
        calls = tuple(made(str(turn), f"result {word}", turn, len(word)) for turn in range(turns))
        for call in calls:
            writer.add_call(call)
        self.added(writer.finish(state).id, parent, word, "assistant", calls)

    @precondition(lambda self: any(node.role == "assistant" for node in map(self.nodes.get, self.live())))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([at for at in self.live() if self.nodes[at].role == "assistant"]))
        node, word = self.nodes[key], self.word()
        writer = self.archive.resume_answer(key)
        writer.extend(" ")
        writer.add_call(made("more", word))
        writer.extend(word)
        writer.finish()
        turn = node.calls[-1].round + 1 if node.calls else 0
        if node.calls and 0 < node.calls[-1].said == len(node.word):
            node.word += PARAGRAPH
        node.calls += (made("more", word, turn, len(node.word) + 1),)
        node.word += f" {word}"

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        old, word = data.draw(st.sampled_from(self.live())), self.word()
        node = self.nodes[old]
        calls = moved(node.calls, node.word, word)
        self.added(self.archive.edit(old, word).id, node.parent, word, node.role, calls)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), step=st.sampled_from([-2, -1, 0, 1, 2]))
    def arrow(self, data: st.DataObject, step: int) -> None:
        key = data.draw(st.sampled_from(self.live()))
        siblings = [at for at in self.nodes[self.nodes[key].parent].children if self.nodes[at].deletion is None]
        self.lead(siblings[min(max(siblings.index(key) + step, 0), len(siblings) - 1)])
        assert [message.id for message in self.archive.sibling(key, step)] == self.path()

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.live()))
        deletion = self.archive.delete_message(key).id
        for at in self.below(key):
            if self.nodes[at].deletion is None:
                self.nodes[at].deletion = deletion
        self.deletions[deletion] = key

    @precondition(lambda self: self.deletions)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        deletion = data.draw(st.sampled_from(sorted(self.deletions)))
        key = self.deletions.pop(deletion)
        self.archive.undo(deletion)
        above = self.nodes[self.nodes[key].parent].deletion
        for node in self.nodes.values():
            if node.deletion == deletion:
                node.deletion = above
        if above is None:
            self.lead(key)

    @precondition(lambda self: self.deletions)
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        deletion = data.draw(st.sampled_from(sorted(self.deletions)))
        key = self.deletions[deletion]
        self.archive.erase(deletion)
        self.nodes[self.nodes[key].parent].children.remove(key)
        for at in self.below(key):
            del self.nodes[at]
        self.deletions = {name: root for name, root in self.deletions.items() if root in self.nodes}

    @rule()
    def delete_and_restore_the_chat(self) -> None:
        deletion = self.archive.delete_chat(self.chat.id)
        assert all(chat.id != self.chat.id for chat in self.archive.chats())
        self.archive.undo(deletion.id)

    @precondition(lambda self: self.archive.persistent)
    @rule()
    def lose_the_file(self) -> None:
        self.archive._give_up(sqlite3.OperationalError("database or disk is full"))
        assert not self.archive.persistent

    @rule()
    def save_back(self) -> None:
        assert self.archive.save_back()
        assert (self.archive.persistent, self.archive.notice) == (True, "")

    @rule()
    def restart(self) -> None:
        self.archive.close()
        self.archive = Archive.open(self.file)
        assert self.archive.notice == ""

    # What must hold

    @invariant()
    def paths_agree(self) -> None:
        assert [message.id for message in self.archive.path(self.chat.id)] == self.path()

    @invariant()
    def trees_agree(self) -> None:
        messages = self.archive.tree(self.chat.id)
        assert sorted(message.id for message in messages) == sorted(self.live())
        seen: set[int | None] = {None}
        for message in messages:
            node = self.nodes[message.id]
            assert (message.parent_id, message.content, message.role) == (node.parent, node.word, node.role)
            assert message.calls == node.calls
            assert message.parent_id in seen
            assert list(message.siblings) == [
                at for at in self.nodes[node.parent].children if self.nodes[at].deletion is None
            ]
            seen.add(message.id)

    @invariant()
    def deletions_agree(self) -> None:
        assert sorted(deletion.id for deletion in self.archive.deletions()) == sorted(self.deletions)

    @invariant()
    def search_finds_what_is_there(self) -> None:
        hits = [hit for hit in self.archive.search("word", limit=1000) if hit.chat_id == self.chat.id]
        assert sorted(hit.message_id for hit in hits if hit.message_id is not None) == sorted(self.live())


TestArchive = ArchiveMachine.TestCase
TestArchive.settings = settings(max_examples=25, stateful_step_count=25)
