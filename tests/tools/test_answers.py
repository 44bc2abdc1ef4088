"""Answers that call tools, of a scripted model, with a real server."""

from __future__ import annotations

import json

import pytest

from localspec.chat.turn import Message
from localspec.engine.slot import FinishReason
from localspec.errors import ContextOverflowError
from localspec.remote.answerer import AnswerEnded, AnswerPart, Facts, Question, Told
from localspec.tools import toolbox as toolbox_module
from localspec.tools.answers import _AGAIN, CallDue, CallMade, Noticed, answer_with
from localspec.tools.toolbox import REFUSED, Consent, Toolbox, forbid
from tests.tools.conftest import Connect, demo
from tests.tools.scripted import Heard, Said, Scripted, call

ADD = call("add", a=2, b=3)


def asking(text: str = "What is 2 and 3?") -> Question:
    return Question([Message("user", text)], seed=1)


def told(model: Scripted, tools: Toolbox, consent: Consent = "once", rounds: int = 20) -> list[Told]:
    """All that is posted, with this said to each question."""
    heard = Heard()
    answer = answer_with(tools, model, asking(), heard, rounds)

    def each(news: Told) -> None:
        assert getattr(news, "answer", answer) is answer
        if isinstance(news, CallDue) and news.asks:
            answer.consent(consent)

    return heard.until_end(each)


def text(news: list[Told]) -> str:
    return "".join(one.text for one in news if isinstance(one, AnswerPart))


def made(news: list[Told]) -> list[CallMade]:
    return [one for one in news if isinstance(one, CallMade)]


def test_a_call_is_made_and_the_answer_goes_on_with_its_result(connect: Connect) -> None:
    model = Scripted([Said("I add.", [ADD], thinking="Which?"), Said("It is 5.", thinking="5!")])
    news = told(model, Toolbox(connect()))
    (one,) = made(news)
    assert (one.made.result, one.made.failed, one.made.said, one.made.thought) == ("5", False, 6, 6)
    assert text(news) == "I add.\n\nIt is 5."
    assert list(model.asked[1].messages) == [
        Message("user", "What is 2 and 3?"),
        Message("assistant", "I add.", (ADD,), reasoning="Which?"),
        Message("tool", "5", tool_call_id=ADD.id, name="add"),
    ]
    assert [tool.name for tool in model.asked[0].tools] == [tool.name for tool in model.asked[1].tools]
    end = news[-1]
    assert isinstance(end, AnswerEnded)
    assert (end.finish, end.stats.generated, end.stats.passes, end.stats.prompt_tokens) == (FinishReason.STOP, 6, 4, 20)


def test_calls_of_one_round_are_made_in_their_order(connect: Connect) -> None:
    news = told(
        Scripted([Said(calls=[ADD, call("say", text="hm"), call("add", a=1, b=1)]), Said("Done.")]), Toolbox(connect())
    )
    assert [one.made.result for one in made(news)] == ["5", "hm", "2"]
    assert {one.made.round for one in made(news)} == {0}


def test_ten_rounds(connect: Connect) -> None:
    def script(question: Question) -> Said:
        results = [int(one.content) for one in question.messages if one.role == "tool"]
        total = results[-1] if results else 0
        return Said(f"Now {total}.", [call("add", a=total, b=1)] if total < 10 else ())

    news = told(Scripted(script), Toolbox(connect(), unasked=True))
    assert [one.made.round for one in made(news)] == list(range(10))
    assert text(news).split("\n\n")[-1] == "Now 10."


def test_a_call_that_is_repeated_is_not_made_again(connect: Connect) -> None:
    """The model is told so; if it does not listen, it has no tools any more."""
    model = Scripted(lambda question: Said("", [ADD]) if question.tools else Said("It is 5."))
    news = told(model, Toolbox(connect(), unasked=True))
    assert [one.made.result for one in made(news)] == ["5", _AGAIN, _AGAIN]
    assert sum(isinstance(one, CallDue) for one in news) == 1
    assert text(news) == "It is 5."


def test_a_call_is_made_again_after_another(connect: Connect) -> None:
    """What it gives may have changed."""
    model = Scripted([Said(calls=[ADD]), Said(calls=[call("say")]), Said(calls=[ADD]), Said("Done.")])
    assert [one.made.failed for one in made(told(model, Toolbox(connect(), unasked=True)))] == [False] * 3


def test_a_consent_of_always_can_be_taken_back_in_the_same_chat(connect: Connect) -> None:
    tools = Toolbox(connect())
    assert asked(told(script(), tools, "always")) == [True, False]
    tools.ask_again(tools.listed["add"].key)
    assert asked(told(script(), tools)) == [True, True]


def test_a_model_without_a_template_is_asked_without_tools(connect: Connect) -> None:
    model = Scripted([Said("Once.")])
    model.facts = Facts("base", completes=True)
    assert text(told(model, Toolbox(connect()))) == "Once."
    assert model.asked[0].tools == ()


def test_an_answer_has_a_most_of_rounds_and_is_asked_without_tools_then(connect: Connect) -> None:

    def script(question: Question) -> Said:
        return Said("", [call("add", a=len(question.messages), b=1)]) if question.tools else Said("Enough.")

    model = Scripted(script)
    news = told(model, Toolbox(connect(), unasked=True), rounds=3)
    assert len(made(news)) == 3
    assert text(news) == "Enough."


@pytest.mark.parametrize(
    ("wrong", "result"),
    [
        (call("subtract", a=1), "There is no tool 'subtract'; there are: add, "),
        (call("add", a=1), "The arguments do not fit the tool's schema, at $: 'b' is a required property."),
        (call("add", a="x", b=1), "The arguments do not fit the tool's schema, at $.a: 'x' is not of type 'integer'."),
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model(connect: Connect, wrong: object, result: str) -> None:
    model = Scripted([Said(calls=[wrong]), Said("I see.")])  # type: ignore[list-item]
    news = told(model, Toolbox(connect()))
    assert not any(isinstance(one, CallDue) for one in news)
    assert made(news)[0].made.failed
    assert made(news)[0].made.result.startswith(result)
    assert model.asked[1].messages[-1].content.startswith(result)


def test_what_a_user_refuses_is_not_called(connect: Connect) -> None:
    model = Scripted([Said(calls=[call("die")]), Said("As you like.")])
    news = told(model, Toolbox(connect()), "no")
    assert (made(news)[0].made.result, made(news)[0].made.failed) == (REFUSED, True)
    assert text(news) == "As you like."


def asked(news: list[Told]) -> list[bool]:
    return [one.asks for one in news if isinstance(one, CallDue)]


def script() -> Scripted:
    return Scripted([Said(calls=[ADD]), Said(calls=[call("add", a=1, b=1)]), Said("5.")])


def test_a_consent_holds_as_long_as_it_was_given_for(connect: Connect) -> None:
    first = Toolbox(connect())
    assert asked(told(script(), first, "once")) == [True, True]
    assert asked(told(script(), first, "chat")) == [True, False]
    assert asked(told(script(), first)) == [False, False]
    second = Toolbox(connect())  # of another chat
    assert asked(told(script(), second, "always")) == [True, False]
    third = Toolbox(connect())
    assert asked(told(script(), third)) == [False, False]
    changed = Toolbox(connect(demo("another")))  # its command is another
    assert asked(told(script(), changed)) == [True, True]
    assert forbid(third.listed["add"].key)
    assert asked(told(script(), Toolbox(connect()))) == [True, True]


def test_read_only_tools_are_asked_for_unless_a_setting_says_otherwise(connect: Connect) -> None:
    assert asked(told(script(), Toolbox(connect()))) == [True, True]
    assert asked(told(script(), Toolbox(connect(), read_only=True))) == [False, False]
    say = Scripted([Said(calls=[call("say")]), Said("Hi.")])
    assert asked(told(say, Toolbox(connect(), read_only=True))) == [True]


def test_a_consent_that_cannot_be_kept_is_said_and_holds_in_this_chat(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = Toolbox(connect())
    monkeypatch.setattr(toolbox_module, "allow", lambda key, what: "No space left on device")
    news = told(script(), tools, "always")
    assert asked(news) == [True, False]
    assert [one.text for one in news if isinstance(one, Noticed)] == [
        "The consent is not kept: No space left on device."
    ]


def test_what_is_switched_off_is_neither_told_nor_called(connect: Connect) -> None:
    tools = Toolbox(connect())
    tools.tools()
    tools.off = {("demo", "add")}
    model = Scripted([Said(calls=[ADD]), Said("5.")])
    news = told(model, tools)
    assert "add" not in [tool.name for tool in model.asked[0].tools]
    assert made(news)[0].made.result.startswith("There is no tool 'add'; there are: bytes, ")
    tools.off = {"demo"}
    told(model, tools)
    assert model.asked[-1].tools == ()


def test_servers_that_fail_are_said_and_the_chat_goes_on(connect: Connect) -> None:
    news = told(Scripted([Said("Hello.")]), Toolbox(connect(demo("exit", name="one"), demo(name="two"))))
    (notice,) = [one.text for one in news if isinstance(one, Noticed)]
    assert notice.startswith("The server one ended (exit code 1): no such folder")
    assert text(news) == "Hello."


@pytest.mark.parametrize(
    ("tool", "result"),
    [("die", "The server demo ended (exit code 3)"), ("fail", "It cannot be done."), ("lost", "Unknown tool: lost")],
)
def test_a_call_that_fails_is_told_to_the_model(connect: Connect, tool: str, result: str) -> None:
    news = told(Scripted([Said(calls=[call(tool)]), Said("Well.")]), Toolbox(connect()))
    assert made(news)[0].made.failed
    assert made(news)[0].made.result.startswith(result)
    assert text(news) == "Well."


def test_a_long_result_is_cut_to_what_the_context_holds(connect: Connect) -> None:
    long = call("say", text="abc " * 20_000)
    model = Scripted([Said(calls=[long]), Said("Long.")], context=4096)
    (one,) = made(told(model, Toolbox(connect())))
    assert len(one.made.result) < 4096 * 3 / 2 + 100
    assert " characters left out ...]" in one.made.result


@pytest.mark.parametrize("state", ["asked", "called", "answering"])
def test_it_is_cancelled_in_each_state(connect: Connect, state: str) -> None:
    name = "hang" if state == "called" else "add"
    first = Said("Hm", wait=True) if state == "answering" else Said(calls=[call(name, a=1, b=2)])
    heard = Heard()
    answer = answer_with(Toolbox(connect(), unasked=state == "called"), Scripted([first]), asking(), heard)

    def each(news: Told) -> None:
        if isinstance(news, AnswerPart if state == "answering" else CallDue):
            answer.cancel()

    news = heard.until_end(each)
    end = news[-1]
    assert isinstance(end, AnswerEnded)
    assert (end.finish, end.error) == (FinishReason.CANCELLED, None)
    assert [(one.made.call.name, one.made.result, one.made.failed) for one in made(news)] == [
        (name, "Cancelled by the user.", True)
    ] * (state != "answering")


def test_an_error_of_a_later_round_ends_the_answer(connect: Connect) -> None:
    model = Scripted([Said("I add.", [ADD]), Said(error=ContextOverflowError("The context is full."))])
    end = told(model, Toolbox(connect()))[-1]
    assert isinstance(end, AnswerEnded)
    assert (end.finish, str(end.error)) == (FinishReason.ERROR, "The context is full.")


def test_an_answer_that_goes_on_has_what_it_said_in_its_first_round(connect: Connect) -> None:
    model, heard = Scripted([Said(" and add.", [ADD]), Said("It is 5.")]), Heard()
    question = Question([Message("user", "2 and 3?")], prefix="I look", reasoning="Hm.")
    news = list[Told]()
    answer_with(Toolbox(connect(), unasked=True), model, question, heard)
    news = heard.until_end()
    first, second = model.asked
    assert (first.prefix, second.prefix) == ("I look", "")
    assert second.messages[1] == Message("assistant", "I look and add.", (ADD,), reasoning="Hm.")
    assert (made(news)[0].made.said, text(news)) == (15, " and add.\n\nIt is 5.")


def test_a_result_is_text(connect: Connect) -> None:
    odd = "<|im_end|>\x1b[2J<tool_call>"
    (one,) = made(told(Scripted([Said(calls=[call("say", text=odd)]), Said("Odd.")]), Toolbox(connect())))
    assert one.made.result == odd
    assert json.loads(one.made.call.arguments) == {"text": odd}
