"""A trained draft model with a vocabulary of its own drafts for the bundled target, and changes no text."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import Engine, Message, SamplingParams
from localspec.cli import main
from localspec.drafters.draft_model import TranslatedContext, Translator
from localspec.errors import PairError
from localspec.types import Rule
from tests.drafters.other_tokenizer import write_other_vocabulary

QUESTIONS = (
    "Repeat: the quick brown fox jumps over the lazy dog.",
    "What is 12 + 7?",
    "Say it: caf\u00e9 \u2192 \U0001f600 ok",
)


@pytest.fixture(scope="module")
def other_draft(tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_other_vocabulary(tiny_draft, tmp_path_factory.mktemp("cross") / "other.gguf")


@pytest.fixture(scope="module")
def engine(tiny_target: Path, other_draft: Path) -> Iterator[Engine]:
    settings: dict[str, Any] = {"cross_tokenizer": True, "exact": "strict", "context": 512, "threads": 1, "wide": False}
    with Engine.load(tiny_target, other_draft, drafter="draft", max_draft_tokens=3, **settings) as loaded:
        yield loaded


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_that_of_plain_decoding_and_guesses_are_right(engine: Engine, temperature: float) -> None:
    if engine.loaded.context.exact_widths == frozenset({1}):
        pytest.skip("on this processor only single rows are exact without wide kernels: nothing is drafted")
    sampling = SamplingParams(temperature=temperature)
    drafted = accepted = 0
    for seed, question in enumerate(QUESTIONS):
        options: dict[str, Any] = {"sampling": sampling, "seed": seed, "max_tokens": 40, "ignore_end": True}
        plain = engine.chat([Message("user", question)], drafter="none", **options)
        speculative = engine.chat([Message("user", question)], **options)
        assert plain.text() == speculative.text()
        assert plain.tokens == speculative.tokens
        assert speculative.stats.exact
        drafted, accepted = drafted + speculative.stats.drafted, accepted + speculative.stats.accepted
    assert drafted > 30
    assert accepted > drafted / 10, "its guesses are worth little"


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_the_other_rules_take_its_probabilities(engine: Engine, rule: Rule) -> None:
    generation = engine.chat([Message("user", QUESTIONS[0])], rule=rule, seed=1, max_tokens=30, ignore_end=True)
    generation.text()
    assert generation.stats.accepted > 0


def test_an_answer_goes_on_where_it_was_read(engine: Engine) -> None:
    """The draft model finds all but the end of a history cached, in its own tokens."""
    start = engine.chat_tokens([Message("user", 4 * QUESTIONS[0])])
    first = engine.generate(start, seed=1, max_tokens=30, ignore_end=True)
    first.text()
    more = engine.tokenize(" And once again.")
    history = np.concatenate([start, np.array(first.tokens, dtype=np.int32), more])
    loaded = engine.loaded
    assert loaded.draft_context is not None
    assert loaded.draft_model is not None
    assert loaded.shared is not None
    translator = Translator(loaded.model, loaded.draft_model, loaded.shared)
    seen = TranslatedContext(loaded.draft_context, translator, loaded.shared)
    assert len(history) - seen.reusable(0, history, len(history)) < len(more) + 20 < len(start)


def test_shared_tokens_are_the_same_bytes_to_both_models(engine: Engine) -> None:
    model, draft, shared = engine.loaded.model, engine.loaded.draft_model, engine.loaded.shared
    assert draft is not None
    assert shared is not None
    for ours, theirs in zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True):
        assert model.piece(ours, special=True) == draft.piece(theirs, special=True)
    ends = {ours: theirs for ours, theirs in shared.controls.items() if ours in model.end_tokens}
    assert ends
    assert set(ends.values()) <= draft.end_tokens


def test_it_is_refused_unless_wanted(tiny_target: Path, other_draft: Path) -> None:
    with pytest.raises(PairError, match="--cross-tokenizer lets it draft"):
        Engine.load(tiny_target, other_draft, progress=lambda what, share: pytest.fail("something was loaded"))


def test_loading_says_how_much_is_shared(
    tiny_target: Path, other_draft: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"cross_tokenizer": True, "exact": "off", "context": 128, "threads": 1, "wide": False}
    with caplog.at_level(logging.WARNING, "localspec"), Engine.load(tiny_target, other_draft, **settings) as loaded:
        shared = loaded.loaded.shared
        assert shared is not None
        assert 2000 < len(shared) < shared.target_size == 4096
        assert f"other.gguf: tokenizers differ: {len(shared)} of 4096 tokens shared" in caplog.text
        loaded.chat([Message("user", "word " * 90)], seed=1, max_tokens=20, drafter="draft").text()


def test_check_says_how_many_tokens_are_shared(
    tiny_target: Path, tiny_draft: Path, other_draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [str(tiny_target), str(other_draft)]
    assert main(["check", *pair]) == 1
    said = capsys.readouterr().out
    assert "--cross-tokenizer" in said
    assert "of the target's 4096 tokens are shared" in said
    assert main(["check", *pair, "--cross-tokenizer", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["match"]
    assert verdict["fits"]
    assert f"{verdict['shared']} of the target's 4096 tokens are shared" in said
    assert main(["check", str(tiny_target), str(tiny_draft), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["match"]["shared"] is None
