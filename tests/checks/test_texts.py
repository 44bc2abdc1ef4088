"""What a target is asked: files of all kinds, folders, chats, and the shipped list."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from localspec.chat.archive.archive import Archive
from localspec.chat.turn import Message
from localspec.checks import prompts
from localspec.checks.prompts import gather, shipped
from localspec.errors import UsageError


def asked(texts: list[str], archive: Path | None = None) -> set[str]:
    """The last messages of all prompts."""
    learned, held = gather(texts, archive)
    return {one[-1].content for one in (*learned, *held)}


def test_the_shipped_list_has_prompts_of_all_kinds_and_none_twice() -> None:
    found = [one[0].content for one in shipped()]
    assert len(found) == len(set(found)) > 600
    assert not any("{" in text or len(text) < 12 for text in found)
    assert "Write a Python function that sorts a list of words by length." in found


def test_what_is_held_out_is_not_learned_and_stays_the_same() -> None:
    learned, held = gather([])
    assert len(held) == prompts.MOST_HELD_OUT
    assert not set(learned) & set(held)
    assert gather([]) == (learned, held)


def test_rows_of_json(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} + {n}?"} for n in range(10)]
    rows += [{"instruction": f"Add {n}.", "input": "1 2"} for n in range(10)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    talk = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bye"},
    ]
    (tmp_path / "b.json").write_text(json.dumps([{"messages": talk}, {"messages": [{"content": 5}]}, {"other": 1}, 7]))
    found = asked([str(tmp_path / "a.jsonl"), str(tmp_path / "b.json")])
    assert {"What is 3 + 3?", "Add 4.\n1 2", "Bye"} <= found
    assert len(found) == 21


def test_odd_rows_are_passed_over_and_parts_are_joined(tmp_path: Path) -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "image_url"}, {"text": "two"}]}
    rows: list[object] = [{"question": f"Is {n} odd?\u2028Say so."} for n in range(20)]
    rows += [{"messages": 5}, {"messages": [user]}, {"prompt": [{"role": "user", "content": "A list"}]}]
    rows += [{"messages": [{"role": "human", "content": "Hi"}, {"role": "user", "content": "No"}]}, {"query": {"a": 1}}]
    path = tmp_path / "odd.jsonl"
    path.write_text("\n   \n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    found = asked([str(path)])
    assert {"Is 3 odd?\u2028Say so.", "One\ntwo", "A list"} <= found
    assert len(found) == 22
    path.write_text('{"prompt": "a"}\n\n{"prompt": \n')
    with pytest.raises(UsageError, match=r"odd\.jsonl, line 3: it is not JSON\."):
        gather([str(path)])
    path.write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"odd\.jsonl, line 1: it is not JSON\."):
        gather([str(path)])


def test_one_long_line_is_cut_into_passages(tmp_path: Path) -> None:
    (tmp_path / "line.txt").write_text("".join(f"{number:06}" for number in range(5000)))
    found = asked([str(tmp_path / "line.txt")])
    assert len(found) == 25
    assert "".join(sorted(text.partition("\n\n")[2] for text in found)) == "".join(f"{n:06}" for n in range(5000))


def test_prompts_are_kept_as_they_were(tmp_path: Path) -> None:
    learned, held = gather([])
    prompts.write(tmp_path / "prompts.json", "mine", learned, held)
    assert prompts.read(tmp_path / "prompts.json", "mine") == (learned, held)
    assert prompts.read(tmp_path / "prompts.json", "others") is None
    (tmp_path / "prompts.json").write_text("{")
    assert prompts.read(tmp_path / "prompts.json", "mine") is None
    assert prompts.read(tmp_path / "nothing.json", "mine") is None


def test_texts_are_cut_between_lines(tmp_path: Path) -> None:
    lines = [f"Line {number} of a long text, which goes on and on." for number in range(600)]
    (tmp_path / "long.txt").write_text("\n".join(lines))
    found = asked([str(tmp_path / "long.txt")])
    assert len(found) > 20
    for text in found:
        request, _, passage = text.partition("\n\n")
        assert request.endswith((":", "?"))
        assert set(passage.split("\n")) <= set(lines)


def test_a_folder_is_read_as_git_keeps_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    for number in range(20):
        (tmp_path / f"code_{number}.py").write_text(f"def function_{number}():\n    return {number}\n")
    (tmp_path / "ignored.py").write_text("SECRET = 1\n")
    found = asked([str(tmp_path)])
    assert len(found) == 20
    assert not any("SECRET" in text for text in found)


def test_chats_are_asked_with_what_was_said_before(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    with Archive.open(path) as archive:
        for number in range(40):
            chat = archive.new_chat(system="Be brief.")
            first = archive.append_user(chat.id, f"question {number}")
            writer = archive.begin_answer(first.id)
            writer.extend("answer")
            writer.finish()
            archive.append_user(chat.id, f"more {number}")
    learned, held = gather(["chats"], path)
    longest = next(one for one in learned if len(one) == 4)
    which = longest[1].content.rpartition(" ")[2]
    assert longest == (
        Message("system", "Be brief."),
        Message("user", f"question {which}"),
        Message("assistant", "answer"),
        Message("user", f"more {which}"),
    )
    assert len(held) == 20
    assert not {one[1] for one in learned} & {one[1] for one in held}, "no chat is in both"
    assert {one[1].content for one in (*learned, *held)} == {f"question {number}" for number in range(40)}


def test_of_one_long_chat_something_is_left_to_learn_from(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    with Archive.open(path) as archive:
        chat = archive.new_chat()
        for number in range(40):
            archive.append_user(chat.id, f"question {number}")
    learned, held = gather(["chats"], path)
    assert (len(learned), len(held)) == (30, 10)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("short.txt", b"One line.\n", "prompts found: 1; training needs 16 or more."),
        ("damaged.jsonl", b"{", "it is not JSON."),
        ("latin.txt", b"caf\xe9 " * 50, "it is not UTF-8 text."),
        ("model.gguf", b"GGUF", "is a model; it must be texts."),
    ],
)
def test_what_cannot_be_used_is_one_sentence(name: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        gather([str(path)])
    assert error.value.message.endswith(sentence)
    with pytest.raises(UsageError, match=r"nothing\.txt: No such file"):
        gather([str(tmp_path / "nothing.txt")])
