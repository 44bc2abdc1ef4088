"""The archive in use: chats, branches, drafts of input, presets, and two programs at once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Attachment, Preset
from localspec.errors import UsageError
from localspec.types import SamplingParams
from tests.chat.conftest import made, say, texts


def test_a_turn_is_kept_with_all_that_belongs_to_it(archive: Archive) -> None:
    chat = archive.new_chat(system="Be brief.", model="pair", params={"temperature": 0.5})
    files = (Attachment("a.py", "print()\n"), Attachment("b.txt", ""))
    question = archive.append_user(chat.id, "# What is **this**?\nPlease say.", attachments=files)
    assert (question.attachments, question.state, question.siblings) == (files, "done", (question.id,))
    writer = archive.begin_answer(question.id, model="pair", seed=2**64 - 1, sampling=SamplingParams(top_k=3))
    assert archive.message(writer.message_id).state == "streaming"
    writer.extend("A pro", reasoning="hm")
    writer.extend("gram.")
    answer = writer.finish(stats={"passes": 2})
    assert (answer.content, answer.reasoning, answer.state) == ("A program.", "hm", "done")
    assert (answer.seed, answer.sampling["top_k"], answer.stats) == (2**64 - 1, 3, {"passes": 2})
    assert archive.chat(chat.id).title == "What is this?"
    assert [message.id for message in archive.path(chat.id)] == [question.id, answer.id]
    assert archive.stats(chat.id) == archive.stats() == [{"passes": 2}]


def test_edit_and_regenerate_make_siblings_and_arrows_walk_them(archive: Archive) -> None:
    chat = archive.new_chat()
    first = say(archive, chat.id, "one", "1")
    say(archive, chat.id, "two", "2")
    again = archive.begin_answer(first.parent_id or 0)
    again.extend("1b")
    assert again.finish().sibling_number == 2
    assert texts(archive.path(chat.id)) == ["one", "1b"]
    assert texts(archive.sibling(again.message_id, -1)) == ["one", "1", "two", "2"]  # deeper choices are remembered
    assert texts(archive.sibling(first.id, -1)) == ["one", "1", "two", "2"]  # the end
    edited = archive.edit(first.parent_id or 0, "uno")
    assert (edited.parent_id, texts(archive.path(chat.id))) == (None, ["uno"])
    assert texts(archive.sibling(edited.id, -1)) == ["one", "1", "two", "2"]
    assert len(archive.tree(chat.id)) == 6


def test_an_edit_keeps_attachments_unless_others_are_given(archive: Archive) -> None:
    chat = archive.new_chat()
    old = archive.append_user(chat.id, "look", attachments=[Attachment("a", "1")])
    assert archive.edit(old.id, "look!").attachments == old.attachments
    assert archive.edit(old.id, "look?", attachments=[]).attachments == ()


def test_an_answer_that_begins_elsewhere_leads_the_path_there(archive: Archive) -> None:
    chat = archive.new_chat()
    first = say(archive, chat.id, "one", "1")
    other = archive.append_user(chat.id, "other beginning", parent=None)
    assert texts(archive.path(chat.id)) == ["other beginning"]
    archive.append_user(chat.id, "two", parent=first.id)
    assert texts(archive.path(chat.id)) == ["one", "1", "two"]
    assert other.sibling_number == 2


def test_a_stopped_answer_goes_on(archive: Archive) -> None:
    chat = archive.new_chat()
    writer = archive.begin_answer(archive.append_user(chat.id, "count").id)
    writer.extend("1 2")
    writer.finish("stopped")
    more = archive.resume_answer(writer.message_id)
    more.extend(" 3")
    assert more.finish().content == "1 2 3"
    with pytest.raises(UsageError, match="no answer"):
        archive.resume_answer(archive.path(chat.id)[0].id)


def test_finish_happens_once(archive: Archive) -> None:
    writer = archive.begin_answer(archive.append_user(archive.new_chat().id, "x").id)
    writer.extend("b", reasoning="a")
    assert writer.finish().reasoning == "a"
    writer.extend("late")
    assert writer.finish("error", note="no").state == "done"
    with pytest.raises(UsageError, match="state"):
        writer.finish("streaming")


def test_the_list_is_in_order_of_use_with_pinned_chats_first(archive: Archive) -> None:
    ids = [archive.new_chat(title=name).id for name in "abc"]
    assert archive.chats() == []  # empty ones are not listed
    assert archive.last_chat() is None
    for chat_id in ids:
        archive.append_user(chat_id, "hi")
    archive.append_user(ids[0], "again")
    archive.update_chat(ids[1], pinned=True)
    archive.set_tags(ids[2], [" work ", "", "ideas"])
    assert [chat.title for chat in archive.chats()] == ["b", "a", "c"]
    last = archive.last_chat()
    assert last is not None
    assert last.title == "a"
    assert archive.tags() == ["ideas", "work"]
    assert [chat.id for chat in archive.chats(tag="work")] == [ids[2]]
    assert [chat.id for chat in archive.chats(limit=2)] == [ids[1], ids[0]]
    archive.update_chat(ids[1], pinned=False)
    archive.update_chat(ids[1], title=" new\n \x1b[31mname\u202e ")
    assert archive.chats()[-1].title == "new name"


def test_unsent_input_is_kept_until_it_is_sent(archive: Archive) -> None:
    chat = archive.new_chat()
    archive.update_chat(chat.id, unsent="half a thou")
    assert [found.unsent for found in archive.chats()] == ["half a thou"]
    archive.append_user(chat.id, "half a thought")
    assert archive.chat(chat.id).unsent == ""


def test_deletions_can_be_undone_or_made_final(archive: Archive) -> None:
    chat = archive.new_chat()
    first, second = say(archive, chat.id, "one", "1"), say(archive, chat.id, "two", "2")
    inner = archive.delete_message(second.id)
    outer = archive.delete_message(first.id)
    assert texts(archive.path(chat.id)) == ["one"]
    archive.undo(inner.id)  # comes back with what it hangs from
    assert texts(archive.path(chat.id)) == ["one"]
    archive.undo(outer.id)
    assert texts(archive.path(chat.id)) == ["one", "1", "two", "2"]
    gone = archive.delete_chat(chat.id)
    with pytest.raises(UsageError, match="no chat"):
        archive.chat(chat.id)
    assert [found.id for found in archive.deletions()] == [gone.id]
    archive.erase(gone.id)
    assert archive.deletions() == []
    with pytest.raises(UsageError, match="no deletion"):
        archive.undo(gone.id)


def test_prompts_are_remembered_once_newest_first(archive: Archive) -> None:
    chat = archive.new_chat()
    for text in ("alpha", "Beta", "alpha", "  "):
        archive.append_user(chat.id, text)
    archive.add_prompt("/help")
    assert archive.prompts() == ["/help", "alpha", "Beta"]
    assert archive.prompts(containing="BET") == ["Beta"]
    assert archive.prompts(1) == ["/help"]


def test_presets(archive: Archive) -> None:
    archive.save_preset(Preset("terse", "Be brief.", {"temperature": 0.1}))
    archive.save_preset(Preset(" terse", "Be very brief.", {"temperature": 0.0}))
    assert archive.presets() == [Preset("terse", "Be very brief.", {"temperature": 0.0})]
    archive.delete_preset("terse")
    with pytest.raises(UsageError, match="no preset"):
        archive.delete_preset("terse")
    with pytest.raises(UsageError, match="1 to 60"):
        archive.save_preset(Preset(" "))


def test_two_programs_share_an_archive(archive: Archive, tmp_path: Path) -> None:
    chat = archive.new_chat()
    writer = archive.begin_answer(archive.append_user(chat.id, "x").id)
    with Archive.open(tmp_path / "chats.sqlite3") as other:
        assert other.path(chat.id)[-1].state == "streaming"  # it is being written, by a living program
        say(other, chat.id, "from the other", "yes")
    writer.extend("done")
    assert writer.finish().content == "done"
    assert texts(archive.path(chat.id))[-1] == "yes"


def test_closing_ends_answers_and_a_second_close_does_nothing(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path / "chats.sqlite3")
    writer = archive.begin_answer(archive.append_user(archive.new_chat().id, "x").id)
    writer.extend("half")
    archive.close()
    archive.close()
    with Archive.open(tmp_path / "chats.sqlite3") as again:
        message = again.message(writer.message_id)
        assert (message.state, message.content) == ("stopped", "half")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chats.sqlite3"]


@pytest.mark.parametrize("number", [0, -5, 99, 2**70])
def test_ids_that_are_not_there(archive: Archive, number: int) -> None:
    with pytest.raises(UsageError, match="There is no"):
        archive.chat(number)
    with pytest.raises(UsageError, match="There is no"):
        archive.message(number)
    with pytest.raises(UsageError, match="There is no"):
        archive.begin_answer(number)


def test_settings_that_cannot_be_kept_are_refused(archive: Archive) -> None:
    with pytest.raises(UsageError, match="cannot be kept"):
        archive.new_chat(params={"x": object()})
    chat, other = archive.new_chat(), archive.new_chat()
    message = archive.append_user(chat.id, "lone \ud800 surrogate \x00")
    assert message.content == "lone \ufffd surrogate \x00"
    with pytest.raises(UsageError, match="not in chat"):
        archive.append_user(other.id, "x", parent=message.id)
    assert archive.path(other.id) == []


def test_calls_are_kept_in_order_and_go_wherever_their_answer_goes(archive: Archive) -> None:
    chat = archive.new_chat()
    writer = archive.begin_answer(archive.append_user(chat.id, "When?").id)
    writer.extend("I look.", reasoning="hm")
    calls = [made("time", "3 pm \x00\x1b[2J", 0, 7, 2), made("day", "Monday", 0, 7, 2)]
    for call in calls:
        writer.add_call(call)
    writer.finish("stopped")
    writer.add_call(made("late", ""))
    more = archive.resume_answer(writer.message_id)
    more.extend("I add.")
    more.add_call(made("add", "5"))
    answer = more.finish()
    assert answer.calls == (*calls, made("add", "5", 1, 15, 2))
    assert answer.pieces == ["I look.", *calls, "\n\nI add.", answer.calls[2]]
    assert archive.path(archive.branch(answer.id).id)[-1].calls == answer.calls
    assert [call.said for call in archive.edit(answer.id, "I lo").calls] == [4, 4, 4]
    archive.undo(archive.delete_message(answer.id).id)
    assert archive.message(answer.id).calls == answer.calls


@pytest.mark.parametrize(
    ("new", "places"),
    [
        ("I look.\n\nI add.\n\nIt is 7.", (7, 15)),  # after the calls
        ("I have a look.\n\nI add.\n\nIt is 5.", (14, 22)),  # before them
        ("I look.\n\nI reckon.\n\nIt is 5.", (7, 18)),  # between them
        ("I look. Wait.\n\nI add.\n\nIt is 5.", (7, 21)),  # right at one
        ("I look", (6, 6)),  # cut
        ("Five!", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_calls_of_an_edited_answer_stay_between_what_stood_around_them(
    archive: Archive, new: str, places: tuple[int, int]
) -> None:
    writer = archive.begin_answer(archive.append_user(archive.new_chat().id, "2 and 3?").id)
    for turn, text in enumerate(("I look.", "\n\nI add.")):
        writer.extend(text, reasoning="hm")
        writer.add_call(made("add", "5", turn))
    writer.extend("\n\nIt is 5.")
    calls = archive.edit(writer.finish().id, new).calls
    assert tuple(call.said for call in calls) == places
    assert {call.thought for call in calls} == {0}


def test_an_answer_that_ended_in_a_call_goes_on_with_a_paragraph(archive: Archive) -> None:
    writer = archive.begin_answer(archive.append_user(archive.new_chat().id, "2 and 3?").id)
    writer.extend("I add.")
    writer.add_call(made("add", "5"))
    stopped = writer.finish("stopped")
    for _ in range(2):  # once it says nothing
        writer = archive.resume_answer(stopped.id)
        assert archive.message(stopped.id).content == "I add.\n\n"
        writer.finish("stopped")
    writer = archive.resume_answer(stopped.id)
    writer.extend("It is")
    writer.finish("stopped")
    writer = archive.resume_answer(stopped.id)
    writer.extend(" 5.")
    assert writer.finish().content == "I add.\n\nIt is 5."
    silent = archive.begin_answer(stopped.id)
    silent.add_call(made("add", "5"))
    assert archive.resume_answer(silent.finish("stopped").id).finish().content == ""


def test_a_damaged_call_does_not_make_a_chat_unreadable(archive: Archive, tmp_path: Path) -> None:
    chat = archive.new_chat()
    writer = archive.begin_answer(archive.append_user(chat.id, "When?").id)
    writer.extend("Now.")
    writer.add_call(made("time", "3 pm"))
    writer.finish()
    with closing(sqlite3.connect(tmp_path / "chats.sqlite3")) as other:
        other.execute(
            "UPDATE call SET arguments = 5, result = x'41ff', round = 'x', said = -7, thought = 1e300, seconds = x''"
        )
        other.commit()
    (found,) = archive.path(chat.id)[-1].calls
    assert found.result == "A\ufffd"
    assert (found.call.arguments, found.round, found.said, found.thought, found.seconds) == ("5", 0, 0, 0, 0.0)
    for kind in ("json", "html", "markdown"):
        assert "Now." in archive.export(None, kind)
