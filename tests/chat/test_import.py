"""Imports: ChatGPT's export with branches, and files that are broken or mean harm: one sentence, nothing changed."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat.archive.archive import Archive
from localspec.errors import UsageError
from tests.chat.conftest import made, say, texts


def node(
    key: str, parent: str | None, role: str = "", *parts: Any, kind: str = "text", **content: Any
) -> dict[str, Any]:
    message = None
    if role:
        body = {"content_type": kind, "parts": list(parts)} | content
        message = {
            "author": {"role": role},
            "create_time": 1.7e9,
            "content": body,
            "metadata": {"model_slug": "gpt-x"} if role == "assistant" else {},
        }
    return {"id": key, "parent": parent, "children": [], "message": message}


def conversation(*nodes: dict[str, Any], current: str = "", **more: Any) -> dict[str, Any]:
    return {
        "title": "Trip",
        "create_time": 1.7e9,
        "update_time": 1.8e9,
        "conversation_id": "c1",
        "mapping": {one["id"]: one for one in nodes},
        "current_node": current,
    } | more


BRANCHED = conversation(
    node("root", None),
    node("sys", "root", "system", ""),
    node("u1", "sys", "user", "Where to?", {"content_type": "image_asset_pointer"}, kind="multimodal_text"),
    node("t1", "u1", "assistant", kind="thoughts", thoughts=[{"summary": "s", "content": "let me see"}]),
    node("a1", "t1", "assistant", "Lisbon."),
    node("tool", "a1", "tool", "raw"),
    node("a1b", "tool", "assistant", "And Porto."),
    node("a2", "u1", "assistant", "Oslo."),
    node("u2", "a2", "user", "Why?"),
    node("a3", "u2", "assistant", kind="code", text="print(1)", language="python"),
    current="a1b",
)


def test_chatgpt_branches_thoughts_code_and_tools(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "conversations.json").write_text(json.dumps([BRANCHED]), encoding="utf-8")
    report = archive.import_file(tmp_path)
    assert (report.chats, report.messages, report.left_out) == (1, 5, 2)
    (chat,) = archive.chats()
    assert (chat.title, chat.used) == ("Trip", 1.8e9)
    question, answer = archive.path(chat.id)
    assert (question.content, answer.content) == ("Where to?", "Lisbon.\n\nAnd Porto.")
    assert (answer.reasoning, answer.model, len(answer.siblings)) == ("let me see", "gpt-x", 2)
    assert texts(archive.sibling(answer.id, 1)) == ["Where to?", "Oslo.", "Why?", "```python\nprint(1)\n```"]
    assert archive.import_file(tmp_path).skipped == 1
    assert len(archive.search("porto")) == 1


def test_chatgpt_as_zip_and_in_several_files(archive: Archive, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as file:
        for number in (0, 1):
            one = BRANCHED | {"conversation_id": f"c{number}"}
            file.writestr(f"export/conversations-{number:03}.json", json.dumps([one]))
        file.writestr("user.json", "{}")
    assert archive.import_file(tmp_path / "export.zip").chats == 2


OWN = {"format": "localspec chats", "version": 1}
TURN = {"key": "m", "role": "user", "content": "hi", "created": 1}

CALL = {"call": {"id": "i", "name": "n", "arguments": "{}"}, "result": ""}


def own(**changes: Any) -> dict[str, Any]:
    return OWN | {"chats": [{"key": "k", "created": 1, "messages": [TURN | changes]}]}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{", "not"),
        (b"[" * 100_000, "nested too deeply"),
        ({"a": 1}, "neither"),
        ([1, 2], "neither"),
        (5, "neither"),
        (OWN | {"version": 2}, "newer localspec"),
        (OWN, "chats is missing; it must be a list"),
        (OWN | {"chats": [5]}, "chat 1 is no object"),
        (OWN | {"chats": [{"key": "k", "created": "soon", "messages": []}]}, "created is 'soon'; it must be a number"),
        (own(role="boss"), "chat 1, message 1: role is 'boss'; it must be one of user"),
        (own(parent="x"), "its parent 'x' does not come before it"),
        (own(parent="m"), "does not come before it"),
        (own(seed=-1), "seed is -1"),
        (own(seed=True), "seed is 'True'; it must be a whole number"),
        (own(created=1e999), "created is 'inf'"),
        (own(passes="!!"), "not base64"),
        (own(passes="AAAA"), "origin data of an answer is damaged"),
        (own(attachments=[{"name": 1}]), "attachment 1: name is '1'; it must be a text"),
        (own(content=None), "content is missing"),
        (own(role="assistant", calls=[5]), "message 1, call 1 is no object"),
        (own(role="assistant", calls=[{"call": {"id": "i", "name": 1}}]), "call 1: name is '1'; it must be a text"),
        (own(role="assistant", calls=[CALL | {"said": -1}]), "call 1: said is -1; it must be between 0 and"),
        (own(role="assistant", calls=[CALL | {"seconds": "x"}]), "call 1: seconds is 'x'; it must be a number"),
        (OWN | {"chats": [own()["chats"][0]] * 2}, "two chats have the same key"),
        (OWN | {"chats": [{"key": "k", "created": 1, "messages": [TURN, TURN]}]}, "is there twice"),
        ([conversation(mapping=[])], "mapping of conversation 1 is no object"),
    ],
)
def test_bad_files_are_named_and_change_nothing(archive: Archive, tmp_path: Path, data: Any, sentence: str) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    with pytest.raises(UsageError) as caught:
        archive.import_file(file)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 400
    assert archive.chats() == []


def test_odd_places_and_rounds_of_calls_are_put_right(archive: Archive, tmp_path: Path) -> None:
    calls = [CALL | {"round": 2**63, "said": 2**63, "thought": 2**63}]
    (tmp_path / "odd.json").write_text(json.dumps(own(role="assistant", calls=calls)))
    assert archive.import_file(tmp_path / "odd.json").messages == 1
    (call,) = archive.path(archive.chats()[0].id)[0].calls
    assert (call.round, call.said, call.thought) == (1, 2, 0)


def test_bad_places(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme.txt", "x")
    (tmp_path / "broken.zip").write_bytes((tmp_path / "other.zip").read_bytes()[:-30] + b"\0" * 30)
    with pytest.raises(UsageError, match=r"no conversations\.json in it"):
        archive.import_file(tmp_path / "other.zip")
    with pytest.raises(UsageError, match="not"):
        archive.import_file(tmp_path / "broken.zip")
    with pytest.raises(UsageError, match=r"has no conversations\.json"):
        archive.import_file(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        archive.import_file(tmp_path / "nowhere.json")
    monkeypatch.setattr("localspec.chat.import_.MOST_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("conversations.json", " " * 10_000_000)
    with pytest.raises(UsageError, match="not imported"):
        archive.import_file(tmp_path / "bomb.zip")


def test_circles_strangers_and_long_chains(archive: Archive, tmp_path: Path) -> None:
    nodes = [node("a", "b", "user", "circle"), node("b", "a", "user", "circle"), node("s", "s", "user", "itself")]
    nodes += [node("0", "gone", "user", "start")]
    nodes += [node(str(n), str(n - 1), "assistant" if n % 2 else "user", f"n{n}") for n in range(1, 3000)]
    (tmp_path / "x.json").write_text(
        json.dumps(conversation(*nodes, title=None) | {"current_node": 7}), encoding="utf-8"
    )
    assert archive.import_file(tmp_path / "x.json").messages == 3001
    (chat,) = archive.chats()
    assert chat.title in ("start", "itself")
    archive.choose(next(message.id for message in archive.tree(chat.id) if message.content == "start"))
    assert len(archive.path(chat.id)) == 3000
    archive.erase(archive.delete_chat(chat.id).id)


junk = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def paths_into(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where everything is in plain data."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [at, *(far for key, value in inner for far in paths_into(value, (*at, key)))]


def replaced(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Plain data with something else in one place."""
    if not at:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[at[0]] = replaced(data[at[0]], at[1:], value)
    return copy


def _own_sample() -> Any:
    with Archive(None) as archive:
        answer = say(archive, archive.new_chat(params={"a": 1}).id, "hi", "ho")
        writer = archive.resume_answer(answer.id)
        writer.add_call(made("time", "3 pm"))
        writer.finish()
        return json.loads(archive.export(None, "json"))


@given(st.sampled_from([_own_sample(), [BRANCHED]]), st.data())
@settings(max_examples=200)
def test_anything_anywhere_in_a_file_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, sample: Any, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        sample = replaced(sample, data.draw(st.sampled_from(paths_into(sample))), data.draw(junk))
    file = tmp_path_factory.getbasetemp() / "junk.json"
    file.write_text(json.dumps(sample), encoding="utf-8")
    with Archive(None) as archive:
        try:
            archive.import_file(file)
        except UsageError:
            assert archive.chats() == []
        for chat in archive.chats():
            archive.path(chat.id)
        for kind in ("json", "html", "markdown"):
            archive.export(None, kind).encode()
