"""The one object that says what is wanted of an answer: names, ranges, and what engines make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from localspec import Engine, Grammar, Options, Rule, SamplingParams
from localspec.engine.interfaces import Request
from localspec.errors import UsageError
from localspec.tui.talk.session import checked


@pytest.fixture(scope="module")
def tiny_engine() -> Iterator[Engine]:
    with Engine.load() as engine:
        yield engine


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"seed": -1}, r"seed is -1; it must be between 0 and 2\^64 - 1\."),
        ({"seed": 2**64}, r"seed is 18446744073709551616; it must be between 0 and 2\^64 - 1\."),
        ({"stream": 2**32}, r"stream is 4294967296; it must be between 0 and 2\^32 - 1\."),
        ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more."),
        ({"max_tokens": True}, "max_tokens is True; it must be a whole number."),
        ({"min_tokens": None}, "min_tokens is None; it must be a whole number."),
        ({"max_draft_tokens": 65}, "max_draft_tokens is 65; it must be between 0 and 64."),
        ({"top_log_probs": 101}, "top_log_probs is 101; it must be between 0 and 100."),
        ({"stop": "end"}, "stop is 'end'; it must be a list of texts."),
        ({"stop": ["a", ""]}, "A stop string is empty."),
        ({"drafter": 7}, "drafter is 7; it must be a name"),
        ({"tokens": 7}, "There is no option called 'tokens'; there are: sampling, seed, "),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(named: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options().having(named)


def test_names_count_more_than_the_object() -> None:
    options = Options(max_tokens=5, seed=1, stop=("a",))
    changed = options.having({"max_tokens": 7, "stop": ["b"]})
    assert changed == Options(max_tokens=7, seed=1, stop=("b",))
    assert options.having({}) is options


def test_an_engine_adds_what_was_left_to_it(tiny_engine: Engine) -> None:
    request = tiny_engine.request("one", Options(prediction="two", drafter="auto"))
    assert isinstance(request, Options)
    assert request.prompt.tolist() == tiny_engine.tokenize("one").tolist()
    assert tiny_engine.loaded.model.detokenize(request.prediction) == "two"
    assert request.drafter is None
    assert request.rule is tiny_engine.settings.verify_rule
    assert request.seed != tiny_engine.request("one", Options()).seed


def test_every_option_reaches_the_request(tiny_engine: Engine) -> None:
    def told(done: int, total: int) -> None:
        """Of the prompt."""

    given: dict[str, Any] = {
        "sampling": SamplingParams(temperature=0),
        "seed": 3,
        "stream": 4,
        "rule": Rule.REJECTION,
        "drafter": "none",
        "max_draft_tokens": 5,
        "forced": True,
        "recall": False,
        "remember": False,
        "prediction": np.array([1, 2], dtype=np.int32),
        "grammar": tiny_engine.compiled(Grammar.regex("a+")),
        "max_tokens": 9,
        "min_tokens": 2,
        "stop": ("x",),
        "stop_tokens": frozenset({7}),
        "ignore_end": True,
        "preserved": frozenset({8}),
        "top_log_probs": 6,
        "drawn_log_probs": True,
        "chat": "key",
        "on_prefill": told,
    }
    assert set(given) == {one.name for one in fields(Options)}
    request = tiny_engine.request(np.array([1]), Options(**given))
    assert {name: getattr(request, name) for name in given if name != "prediction"} == {
        name: value for name, value in given.items() if name != "prediction"
    }
    assert request.prediction.tolist() == [1, 2]
    default = Request(np.array([1], dtype=np.int32))
    assert all(getattr(default, name) is not value for name, value in given.items()), "each is another than by default"


@pytest.mark.parametrize(
    ("name", "value"), [("seed", -2), ("seed", 2**64), ("max_tokens", 0), ("max_draft_tokens", 65), ("seed", 1.5)]
)
def test_a_chat_refuses_with_the_sentence_of_the_engine(name: str, value: object) -> None:
    with pytest.raises(UsageError) as ours:
        Options().having({name: value})
    with pytest.raises(UsageError) as chats:
        checked({name: value})
    assert chats.value.message == ours.value.message
