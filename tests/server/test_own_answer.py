"""What the program asks of its own process is answered as models in the same process answer it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from localspec.chat.reply.tool import Tool, ToolCall
from localspec.chat.turn import Message
from localspec.checks.doctor import Remark, examine_engine, examine_use
from localspec.engine.slot import FinishReason
from localspec.errors import ContextOverflowError, LocalspecError, ModelError, UsageError
from localspec.options import SamplingParams
from localspec.remote.answerer import Question, question_in
from localspec.runtime.pool import Pool
from localspec.server.own.serve import options_of
from tests.chat.marked_file import write_harmony
from tests.llama.rewritten_gguf import rewritten
from tests.native.inside import tokens_held
from tests.runner.test_answering import plain
from tests.server.held import eventually
from tests.server.live import COPIED, COPY, engine_of
from tests.server.named_events import LOOK_UP, QUERY_JSON, WIKIPEDIA
from tests.server.own import Heard, ask, body_of, lines, serving

SAME = ("prompt_tokens", "generated", "exact")
"""Figures that depend neither on time nor on what the engine did before."""


def same(pool: Pool, found: Heard, question: Question) -> None:
    """Whether an answer is that of the engine itself, to the figures."""
    pool.lease(pool.default).release()
    other = plain(engine_of(pool), question)
    assert found.failure is other.ended.error is None
    assert found.text == "".join(part.text for part in other.parts)
    assert found.thinking == "".join(part.thinking for part in other.parts)
    assert found.tokens == [token for part in other.parts for token in part.tokens]
    assert found.finish is other.ended.finish
    for name in SAME:
        assert getattr(found.hearer.stats, name) == getattr(other.ended.stats, name)


@pytest.fixture(scope="module")
def own(pool: Pool) -> Iterator[httpx.Client]:
    with serving(pool) as client:
        yield client


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A model that has channels, and random weights."""
    path = write_harmony(tmp_path_factory.mktemp("models") / "harmony.gguf")
    found = Pool(str(path), settings={"slots": 1, "context": 4096, "exact": "off"})
    yield found
    found.close()


ASKED = Question([Message("user", COPY)], SamplingParams(temperature=0.0), seed=3, drafter="none", max_tokens=40)


@pytest.mark.parametrize("drafter", ["none", "draft", "lookup"])
def test_an_answer_is_the_same(pool: Pool, own: httpx.Client, drafter: str) -> None:
    question = replace(ASKED, drafter=drafter, max_draft_tokens=4)
    found = ask(own, body_of(question))
    same(pool, found, question)
    assert found.text == COPIED
    model = engine_of(pool).loaded.model
    assert b"".join(found.hearer.pieces[token] for token in found.tokens).decode() == COPIED
    assert all(found.hearer.pieces[token] == model.piece(token) for token in found.tokens)
    stats, records = found.hearer.stats, [record for one in found.steps for record in one.records]
    assert (stats.generated, stats.passes) == (len(found.tokens), len(records))
    assert stats.drafted == sum(len(record.guesses) for record in records)
    assert stats.accepted == sum(len(record.accepted) for record in records)
    assert len(stats.gaps) == stats.passes - 1
    origins = [origin for one in found.steps for origin in one.origins]
    assert len(origins) == len(found.tokens)
    assert {origin.drafter for origin in origins} <= {"", drafter}


def test_how_far_the_prompt_is_read_is_told(own: httpx.Client) -> None:
    found = ask(own, body_of(replace(ASKED, messages=[Message("user", "Sort these: 5, 4")], max_tokens=2)))
    length = found.hearer.stats.prompt_tokens
    assert [one.progress for one in found.steps if one.progress is not None][-1] == (length - 1, length - 1)


@pytest.mark.parametrize("thought_out", [False, True])
@pytest.mark.parametrize("reasoning", ["", "Let me see."])
@pytest.mark.parametrize("prefix", ["", "Maria bought"])
def test_it_goes_on_from_the_same_tokens(
    pool: Pool, harmony: Pool, own: httpx.Client, prefix: str, reasoning: str, thought_out: bool
) -> None:
    question = replace(ASKED, prefix=prefix, reasoning=reasoning, thought_out=thought_out, max_tokens=12)
    same(pool, ask(own, body_of(question)), question)
    with serving(harmony) as client:
        same(harmony, ask(client, body_of(question)), question)


def test_raw_text_has_its_marks(harmony: Pool) -> None:
    with serving(harmony) as client:
        found = ask(client, body_of(replace(ASKED, raw=True)))
    engine = engine_of(harmony)
    said = engine.chat(ASKED.messages, sampling=ASKED.sampling, seed=3, max_tokens=40, drafter="none")
    assert found.text == said.text()
    assert found.tokens == said.tokens
    assert found.thinking == ""


def test_a_base_model_goes_on_with_the_text(tmp_path: Path, tiny_target: Path) -> None:
    path = rewritten(tiny_target, tmp_path / "base.gguf", without=("tokenizer.chat_template",))
    pool = Pool(str(path), settings={"slots": 1, "exact": "off"})
    question = replace(ASKED, messages=[Message("user", "Once upon")], max_tokens=None)
    with serving(pool) as client:
        same(pool, ask(client, body_of(question)), question)
        with pytest.raises(ModelError, match="a system message has no place"):
            ask(client, body_of(replace(question, messages=[Message("system", "Be brief."), *question.messages])))
    pool.close()


def test_a_prompt_without_room_is_refused(pool: Pool, own: httpx.Client) -> None:
    n_ctx = engine_of(pool).loaded.context.n_ctx
    length = ask(own, body_of(replace(ASKED, room=n_ctx // 2))).hearer.stats.prompt_tokens
    found = ask(own, body_of(replace(ASKED, room=n_ctx - length)))
    assert (found.text, found.taken) == (COPIED, length)
    with pytest.raises(ContextOverflowError, match=f"The prompt has {length} tokens"):
        ask(own, body_of(replace(ASKED, room=n_ctx - length + 1)))


def test_an_error_keeps_its_kind(own: httpx.Client) -> None:
    with pytest.raises(LocalspecError, match="no drafter called 'nobody'"):
        ask(own, body_of(replace(ASKED, drafter="nobody")))


def test_every_sampling_setting_goes_through() -> None:
    numbers: dict[str, Any] = {one.name: 0.5 if one.type == "float" else 3 for one in fields(SamplingParams)[:-2]}
    given = SamplingParams(
        **numbers | {"dry_base": 1.3}, dry_sequence_breakers=("\n", "."), logit_bias=((5, -1.5), (7, -math.inf))
    )
    body = json.dumps(body_of(replace(ASKED, sampling=given)), allow_nan=False)
    assert options_of(question_in(json.loads(body)["question"]), None).sampling == given


def test_what_only_an_engine_can_be_told_goes_through() -> None:
    asked = replace(ASKED, chat="key", stop=("a", "b"), max_draft_tokens=2, private=True)
    got = question_in(json.loads(json.dumps(body_of(asked)))["question"])
    assert got == asked
    found = options_of(got, None)
    assert (found.chat, found.stop, found.max_draft_tokens, found.seed) == ("key", ("a", "b"), 2, 3)
    assert (found.recall, found.remember, found.drafter) == (False, False, "none")
    assert found.max_tokens == 40
    assert options_of(replace(got, max_tokens=None), 9).max_tokens == 9


def test_messages_and_tools_go_through_with_all_they_have() -> None:
    called = Message("assistant", "", (ToolCall("a", "f", "{}"), ToolCall("b", "g", '{"x": 1}')), reasoning="Hm.")
    results = [Message("tool", "1", tool_call_id="a", name="f"), Message("tool", "2", tool_call_id="b", name="g")]
    tools = (Tool("f", "Does.", {"type": "object", "properties": {"a": {"enum": [1]}}}, strict=True), Tool("g"))
    asked = replace(ASKED, messages=[Message("user", "Go."), called, *results], tools=tools)
    assert question_in(json.loads(json.dumps(body_of(asked)))["question"]) == asked


CALLING = replace(ASKED, messages=[Message("user", LOOK_UP)], max_tokens=150, tools=(Tool(**WIKIPEDIA),))


@pytest.mark.parametrize("raw", [False, True])
def test_a_call_comes_whole(own: httpx.Client, raw: bool) -> None:
    found = ask(own, body_of(replace(CALLING, raw=raw)))
    (call,) = found.calls
    assert (call["index"], call["type"], len(call["id"])) == (0, "function", 9)
    assert call["function"] == {"name": "wikipedia", "arguments": QUERY_JSON}
    assert (found.text, found.finish) == ("", FinishReason.STOP)


def test_a_call_that_the_limit_cuts_is_left_out(own: httpx.Client) -> None:
    length = len(ask(own, body_of(CALLING)).tokens)
    found = [ask(own, body_of(replace(CALLING, max_tokens=limit))) for limit in range(1, length)]
    assert [one.text for one in found] == [""] * len(found)
    called = [[call["function"]["arguments"] for call in one.calls] for one in found]
    assert called == sorted(called)
    assert called[length // 2] == []
    assert all(one in ([], [QUERY_JSON]) for one in called)


def test_a_call_that_begins_is_of_a_tool_that_there_is(own: httpx.Client) -> None:
    """Hot enough that names are made up: then the mark of a call would stand in the text."""
    hot = replace(CALLING, sampling=SamplingParams(temperature=1.6), max_tokens=50, tools=(Tool("set_timer"),))
    found = [ask(own, body_of(replace(hot, seed=seed))) for seed in range(20)]
    assert not any("<tool_call>" in one.text for one in found if one.finish is not FinishReason.LENGTH)
    assert any(one.calls for one in found)


@pytest.mark.parametrize("pattern", ["(", "a" * 20_000])
def test_a_tool_that_calls_cannot_be_held_to_fails_no_answer(own: httpx.Client, pattern: str) -> None:
    parameters = WIKIPEDIA["parameters"] | {"properties": {"query": {"type": "string", "pattern": pattern}}}
    tool = Tool("wikipedia", parameters=parameters, strict=True)
    (call,) = ask(own, body_of(replace(CALLING, tools=(tool,)))).calls
    assert call["function"]["arguments"] == QUERY_JSON


def test_a_model_without_a_template_cannot_be_told_of_tools(tmp_path: Path, tiny_target: Path) -> None:
    path = rewritten(tiny_target, tmp_path / "base.gguf", without=("tokenizer.chat_template",))
    pool = Pool(str(path), settings={"slots": 1, "exact": "off"})
    with serving(pool) as client, pytest.raises(UsageError, match=r"^base\.gguf has no chat template, so it cannot"):
        ask(client, body_of(CALLING))
    pool.close()


def test_who_leaves_frees_the_engine(pool: Pool, own: httpx.Client) -> None:
    endless = replace(ASKED, max_tokens=None, sampling=SamplingParams(logit_bias=((40, 1e6),)))
    stream = lines(own, body_of(endless))
    while not next(stream):
        pass
    assert len(engine_of(pool).running) == 1
    stream.close()
    assert eventually(lambda: not engine_of(pool).running)


def test_a_cancelled_answer_ends_with_its_figures(own: httpx.Client) -> None:
    found, endless = Heard(), replace(ASKED, max_tokens=None, sampling=SamplingParams(logit_bias=((40, 1e6),)))
    for line in lines(own, body_of(endless)):
        found.take(line)
        if found.tokens and found.finish is None:
            assert own.post("/localspec/cancel", json={"id": "1"}).is_success
    assert found.finish is FinishReason.CANCELLED
    assert found.hearer.stats.generated == len(found.tokens)
    assert found.failure is None
    assert own.post("/localspec/cancel", json={"id": "1"}).is_success  # it is over


def test_a_prompt_is_counted(own: httpx.Client) -> None:
    def counted(question: Question) -> int:
        return int(own.post("/localspec/count", json=body_of(question)["question"]).json()["tokens"])

    for question in (replace(ASKED, prefix="Maria bought"), CALLING):
        assert counted(question) == ask(own, body_of(question)).hearer.stats.prompt_tokens
    assert counted(CALLING) > counted(replace(CALLING, tools=()))


def test_the_models_are_looked_at(pool: Pool, own: httpx.Client) -> None:
    found = own.get("/localspec/doctor", params={"context": 100}).json()
    engine = engine_of(pool)
    for name, seen in {"use": examine_use(engine, 100), "parts": examine_engine(engine)}.items():
        assert [Remark(**one).name for one in found[name]] == [one.name for one in seen]


def test_what_is_kept_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    pool = Pool(str(tiny_target), settings={"slots": 1, "corpus": "on", "exact": "off"})
    question = replace(ASKED, chat="one")
    with serving(pool) as client:
        assert ask(client, body_of(question)).hearer.stats.reused_tokens == 0
        assert ask(client, body_of(replace(question, private=True))).hearer.stats.reused_tokens > 0
        client.post("/localspec/forget", json={})
        assert ask(client, body_of(replace(question, chat=None, private=True))).hearer.stats.reused_tokens == 0
        assert held(pool) > 0
        client.post("/localspec/forget", json={"chat": "one"})
        assert held(pool) == 0
    pool.close()


def held(pool: Pool) -> int:
    """Tokens of past answers."""
    corpus = engine_of(pool).loaded.corpus
    assert corpus is not None
    corpus.settle()
    return tokens_held(corpus._index)
