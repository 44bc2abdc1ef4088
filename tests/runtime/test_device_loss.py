"""A GPU is lost while answers are written: they go on on the CPU from what they have said; under strict they end.

The GPU is a fake: llama.cpp is told of no device, and what "loads" there is computed on the CPU. It is lost when
`llama_decode` says so of every pass of the models that were put there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import cli
from localspec.config import EngineSettings
from localspec.engine.slot import FinishReason
from localspec.errors import DeviceError
from localspec.grammar.grammar import Grammar
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.runtime.engine import Engine
from localspec.runtime.loading import load_models
from localspec.types import SamplingParams
from tests.fake_gpus import CARD, Gpu, list_gpus

GREEDY = SamplingParams(temperature=0.0)
STORY = "Once upon a time there was a dog"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    list_gpus(monkeypatch, CARD)
    return Gpu(monkeypatch)


@pytest.fixture
def load(tiny_target: Path, tiny_draft: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def load_pair(draft: bool = True, **settings: Any) -> Engine:
        wanted = EngineSettings(tiny_target, tiny_draft if draft else None, context=512, **settings)
        made.append(Engine(load_models(wanted)))
        return made[-1]

    yield load_pair
    for engine in made:
        engine.close()


def told(engine: Engine, tokens: list[int]) -> str:
    model: Model = engine.loaded.model
    return b"".join(model.piece(token) for token in tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("draft", [True, False], ids=["pair", "alone"])
def test_an_answer_goes_on_on_the_cpu(
    gpu: Gpu, load: Callable[..., Engine], draft: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load(draft, exact="off" if draft else "auto")
    assert engine.settings.gpu_layers == -1
    prompt = engine.tokenize(STORY)
    said_there: list[int] = []
    gpu.at_loss = lambda: said_there.append(engine.loop.active[0].stats.generated)
    gpu.left = 12
    with caplog.at_level(logging.WARNING, "localspec"):
        generation = engine.generate(prompt, sampling=GREEDY, max_tokens=40, ignore_end=True)
        text = generation.text()
    assert (generation.finish, len(generation.tokens)) == (FinishReason.LENGTH, 40)
    assert text == told(engine, generation.tokens)
    assert not generation.stats.exact
    assert 1 <= said_there[0] < 40
    assert (engine.settings.gpu_layers, engine.settings.device) == (0, None)
    assert (engine.loaded.draft_context is not None, engine.outdated) == (draft, "")
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "The GPU (CUDA0) failed: llama.cpp could not evaluate a pass: the computation failed. "
        "The CPU goes on with the answers, marked exact: no."
    )
    before = gpu.refused
    for count in range(said_there[0], 40, 8):  # what followed is what the CPU says after what was said
        history = np.concatenate([prompt, np.array(generation.tokens[:count], dtype=np.int32)])
        again = engine.generate(history, sampling=GREEDY, max_tokens=1, ignore_end=True, drafter="none")
        again.text()
        assert again.tokens == generation.tokens[count : count + 1]
    assert gpu.refused == before, "the GPU was not asked again"


def test_it_is_not_asked_again_and_every_other_call_works(gpu: Gpu, load: Callable[..., Engine]) -> None:
    """Other models of the engine read texts, and settings change, as before."""
    engine = load(exact="auto")
    tokens = engine.tokenize(STORY)
    before = engine.score(tokens)
    gpu.left = 0
    assert len(engine.generate(STORY, sampling=GREEDY, max_tokens=4, ignore_end=True).text()) > 0
    refused = gpu.refused
    after = engine.score(tokens)
    assert [one.token for one in after] == [one.token for one in before]
    assert len(engine.embed(tokens)) > 0
    engine.forget()
    engine.configure(drafter="lookup")
    assert engine.drafters == ("lookup",)
    generation = engine.generate(STORY, sampling=GREEDY, max_tokens=4, ignore_end=True)
    generation.text()
    assert generation.stats.exact
    assert gpu.refused == refused


def test_it_is_lost_while_a_prompt_is_read(gpu: Gpu, load: Callable[..., Engine]) -> None:
    engine = load(exact="off", slots=2)
    long = np.tile(engine.tokenize(STORY), 30)[:240]
    gpu.left = 0
    generations = [engine.generate(long[one:], sampling=GREEDY, max_tokens=6, ignore_end=True) for one in range(2)]
    for generation in generations:
        generation.text()
        assert len(generation.tokens) == 6
    assert not generations[0].stats.exact
    alone = engine.generate(long, sampling=GREEDY, max_tokens=6, ignore_end=True)
    alone.text()
    assert alone.tokens == generations[0].tokens


def test_a_grammar_stays_where_it_was(gpu: Gpu, load: Callable[..., Engine]) -> None:
    engine = load(exact="off")
    grammar = Grammar.regex(r"[0-9]{30}")
    gpu.left = 8
    text = engine.generate(STORY, sampling=GREEDY, grammar=grammar, max_tokens=60, drafter="none").text()
    assert text.isdigit()
    assert len(text) == 30
    assert gpu.refused >= 1


def test_under_strict_the_answer_ends_and_nothing_said_is_lost(gpu: Gpu, load: Callable[..., Engine]) -> None:
    engine = load(exact="strict")
    expected = engine.generate(STORY, sampling=GREEDY, max_tokens=40, ignore_end=True, drafter="none")
    expected.text()
    gpu.left, texts = 12, list[str]()
    generation = engine.generate(STORY, sampling=GREEDY, max_tokens=40, ignore_end=True, drafter="none")
    with pytest.raises(DeviceError) as found:
        texts.extend(event.text for event in generation)
    assert found.value.exit_code == 5
    assert str(found.value) == (
        "The GPU (CUDA0) failed: llama.cpp could not evaluate a pass: the computation failed. "
        "Under --exact strict an answer does not go on on another device; ask again."
    )
    assert generation.tokens == expected.tokens[: len(generation.tokens)]
    assert 1 <= len(generation.tokens) < 40
    assert "".join(texts) == told(engine, generation.tokens)
    assert engine.outdated == found.value.message, "the server and the chat load the models again then"


def test_what_the_cpu_cannot_serve_ends(gpu: Gpu, load: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(exact="off")
    monkeypatch.setattr(lib.api(), "llama_model_load_from_file", lambda path, params: None)
    gpu.left, texts = 12, list[str]()
    generation = engine.generate(STORY, sampling=GREEDY, max_tokens=40, ignore_end=True)
    with pytest.raises(DeviceError, match=r"The GPU \(CUDA0\) failed: .* The CPU cannot serve: .*cannot load"):
        texts.extend(event.text for event in generation)
    assert "".join(texts) == told(engine, generation.tokens)
    assert engine.outdated.startswith("The GPU (CUDA0) failed")


def test_the_command_line_tells_what_was_said_and_ends_with_5(
    gpu: Gpu, tiny_target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [
        "run",
        "--raw",
        "--target",
        str(tiny_target),
        "--exact",
        "strict",
        "--temperature",
        "0",
        "--max-tokens",
        "30",
    ]
    given += ["--drafter", "none", "--gpu-layers", "-1", STORY]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    before = gpu.left
    assert cli.main(given) == 0
    whole = capsys.readouterr().out
    gpu.left = before - gpu.left - 10
    assert cli.main(given) == 5
    said, error = capsys.readouterr()
    assert whole.startswith(said.rstrip("\n"))
    assert 0 < len(said.strip()) < len(whole.strip())
    assert "failed: llama.cpp could not evaluate a pass: the computation failed." in error
