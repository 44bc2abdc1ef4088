"""Hidden states of the bundled target, against a forward pass in numpy; beside answers; on disk."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localspec.cli.commands import train as extract
from localspec.errors import Cancelled, ContextOverflowError, LocalspecError, UsageError
from localspec.models.facts.heads import opened, save
from localspec.runtime.engine import Engine
from tests.cli.conftest import Command, command  # noqa: F401 - a fixture
from tests.llama.forward_pass import ForwardPass

TEXT = "Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo. How many lanterns does she have?\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(drafter="lookup", max_draft_tokens=3, chat_cache_gb=0.0) as engine:
        yield engine


def far(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """How far arrays are apart, as a share of the size of the expected one; the worst token counts."""
    apart = np.linalg.norm(found - expected, axis=1)
    return float((apart / np.linalg.norm(expected, axis=1)).max())


def test_they_are_those_of_an_independent_forward_pass(engine: Engine, tiny_target: Path) -> None:
    tokens = engine.tokenize(TEXT * 3)
    model = ForwardPass(tiny_target)
    inputs, final = model(tokens)
    states = engine.hidden_states(tokens, range(model.layers))
    assert list(states.layers) == list(range(model.layers))
    assert states.final.dtype == np.float32
    assert far(states.layers[0], inputs[0]) < 1e-6, "token embeddings, exactly"
    for layer in range(1, model.layers):
        assert far(states.layers[layer], inputs[layer]) < 0.05, layer  # activations have 8 bits in every product
        assert far(states.layers[layer], inputs[layer - 1]) > 0.1, "another layer's are far off"
    assert far(states.final, final) < 0.15


def test_a_long_text_is_read_on_the_grid_of_prompts(engine: Engine) -> None:
    """What a text begins with does not depend on what follows in later passes, to the last bit."""
    grid = engine.loaded.context.grid
    tokens = np.resize(engine.tokenize(TEXT), 2 * grid + 40)
    long = engine.hidden_states(tokens, [5, 2, 2])
    assert list(long.layers) == [2, 5]
    assert long.final.shape == long.layers[2].shape == (len(tokens), long.final.shape[1])
    short = engine.hidden_states(tokens[:grid], [2])
    assert (short.layers[2] == long.layers[2][:grid]).all()
    assert (short.final == long.final[:grid]).all()
    assert engine.hidden_states(tokens[:1]).layers == {}


def test_answers_that_run_meanwhile_are_not_disturbed(engine: Engine) -> None:
    options: dict[str, Any] = {"max_tokens": 40, "seed": 3, "ignore_end": True}
    alone = engine.generate(TEXT, **options)
    expected = alone.text()
    running = engine.generate(TEXT, **options)
    first = next(iter(running)).text
    assert len(engine.hidden_states(engine.tokenize(TEXT), [1]).final) > 0
    assert first + running.text() == expected
    assert running.tokens == alone.tokens


@pytest.mark.parametrize(
    ("layers", "said"), [([99], "no layer 99"), ([-1], "no layer -1"), (["x"], "no layer 'x'"), ([0.5], "no layer 0.5")]
)
def test_layers_that_are_not_there_are_refused(layers: list[Any], said: str, engine: Engine) -> None:
    with pytest.raises(UsageError, match=said):
        engine.hidden_states(engine.tokenize("x"), layers)


def test_what_cannot_be_read_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = engine.tokenize(TEXT)
    with pytest.raises(UsageError, match="nothing to read"):
        engine.hidden_states(tokens[:0])
    with pytest.raises(UsageError, match="not in the vocabulary"):
        engine.hidden_states(np.array([10**6], dtype=np.int32))
    with pytest.raises(ContextOverflowError, match="the context holds"):
        engine.hidden_states(np.resize(tokens, engine.loaded.context.n_ctx + 1))
    with pytest.raises(Cancelled):
        engine.hidden_states(tokens, cancel=lambda: True)
    monkeypatch.setattr("localspec.llama.library.settings.SHOWS_LAYERS", frozenset({"gpt-oss"}))
    with pytest.raises(UsageError, match="does not show what goes into layers of the architecture llama"):
        engine.hidden_states(tokens, [1])
    assert len(engine.hidden_states(tokens).final) == len(tokens), "final states are there for every architecture"


# -- on disk ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Arrays and metadata."""
    file = opened(path)
    return {name: file.get_tensor(name) for name in file.offset_keys()}, file.metadata()


def test_extract_writes_them_for_training(command: Command, tmp_path: Path, engine: Engine) -> None:  # noqa: F811
    text, out = tmp_path / "text.txt", tmp_path / "new" / "states.safetensors"
    text.write_text(TEXT * 4, encoding="utf-8")
    arguments = ("extract", str(text), "--layers", "4,1", "--window", "64", "--out", str(out))
    result = command(*arguments)
    assert result.code == 0, result.err
    arrays, facts = read(out)
    assert [file.name for file in out.parent.iterdir()] == [out.name]
    pieces = json.loads(facts["pieces"])
    assert len(pieces) > 1
    assert pieces[0] == [str(text), 0]
    assert facts["sha256"] == engine.loaded.model.sha256
    kinds = ("tokens", "layer.1", "layer.4", "final")
    assert set(arrays) == {f"{number}.{kind}" for number in range(len(pieces)) for kind in kinds}
    assert out.stat().st_mode == text.stat().st_mode, "the states have the mode of the text"
    last = len(pieces) - 1
    states = engine.hidden_states(arrays[f"{last}.tokens"], [1, 4])
    assert (states.layers[4] == arrays[f"{last}.layer.4"]).all()
    assert (states.final == arrays[f"{last}.final"]).all()
    bos = int(engine.loaded.model.add_bos)
    whole = np.concatenate([arrays[f"{number}.tokens"][bos:] for number in range(len(pieces))])
    assert whole.tolist() == engine.tokenize(TEXT * 4)[bos:].tolist()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--layers", "x"), 2, "--layers is 'x'"),
        (("--layers", "99"), 2, "no layer 99"),
        (("--window", "1"), 2, "--window is 1"),
        (("--drafter", "lookup"), 2, "drafts nothing"),
        (("--window", "999999"), 2, "--window is 999999, and the context holds"),
        (("--out", "text.txt"), 2, "is one of the texts"),
        (("--out", "text.txt/out"), 1, "text.txt cannot be made"),
    ],
)
def test_bad_input_is_one_sentence(
    options: tuple[str, ...],
    code: int,
    said: str,
    command: Command,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    result = command("extract", "text.txt", "--out", "out.safetensors", *options)
    assert (result.code, result.err.count("\n")) == (code, 1), result.err
    assert said in result.err
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]
    result = command("extract", "nosuch.txt", "--out", "out.safetensors")
    assert (result.code, "Cannot read nosuch.txt" in result.err) == (2, True)


def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(command: Command, tmp_path: Path) -> None:  # noqa: F811
    text, out = tmp_path / "text.txt", tmp_path / "states.safetensors"
    text.write_text(TEXT * 4, encoding="utf-8")
    arguments = ("extract", str(text), "--out", str(out))
    assert command(*arguments).code == 0
    before = out.read_bytes()
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for most in (2**12, len(before) - 1):  # full while states are computed, and while the file is written
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            result = command(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (result.code, result.err.count("\n")) == (1, 1), result.err
        assert f"{out} cannot be written: " in result.err
        assert "too large" in result.err
        assert sorted(tmp_path.iterdir()) == [out, text]
        assert out.read_bytes() == before
    signal.signal(signal.SIGXFSZ, ignored)


def test_nothing_incomplete_is_left(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "hidden_states", stop)
    with pytest.raises(KeyboardInterrupt):
        extract._write(engine, tmp_path / "x", [extract._Piece("a", 0, engine.tokenize(TEXT))], ())
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_written_as_they_are_meant(tmp_path: Path) -> None:
    path, array = tmp_path / "x.safetensors", np.arange(6, dtype=np.float32).reshape(2, 3)
    save(path, {"a": array.T, "b": array[:, 1]}, {"c": "d"})
    found, facts = read(path)
    assert (found["a"] == array.T).all()
    assert (found["b"] == array[:, 1]).all()
    assert facts == {"c": "d"}
    with pytest.raises(LocalspecError, match="cannot be written: "):
        save(tmp_path / "nowhere" / "x", {"a": array})
