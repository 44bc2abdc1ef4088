"""`localspec train` as a command: what it says before it starts, what it refuses, whole runs on the bundled target."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localspec import Engine
from localspec.errors import LocalspecError
from localspec.gguf import read_header
from localspec.models.facts.pairing import TRAINED_FOR
from localspec.models.installed.installed import work_folder
from localspec.models.installed.store import Store
from localspec.training.course import TrainingPlan
from localspec.types import SamplingParams
from tests.cli.conftest import Command
from tests.drafters.shipped_heads import SHIPPED
from tests.llama import architectures

TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks before training do not need it, only that it is there."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "torch" else find(name))


@pytest.fixture
def own(tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the bundled target, and a data folder of its own."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    return Path(shutil.copy(tiny_target, tmp_path / "own.gguf"))


@pytest.mark.usefixtures("with_torch")
def test_a_dry_run_says_what_it_takes_and_does_nothing(command: Command, own: Path) -> None:
    result = command("train", str(own), "--dry-run", "--minutes", "30")
    assert result.code == 0
    assert "10 minutes of answers" in result.err
    assert "20 of training 2.6 M weights" in result.err
    assert " of memory" not in result.err
    assert not work_folder("own-draft").exists()
    told = json.loads(command("train", str(own), "--dry-run", "--json", "--layers", "4").out)
    assert told["minutes"] == 60.0
    assert told["memory_bytes"] > 200e6
    assert told["disk_bytes"] > told["result_bytes"] > 4e6
    assert told["parameters"] > 4e6


@pytest.mark.parametrize(
    ("arguments", "sentence", "code"),
    [
        (["--minutes", "0.5"], "--minutes is 0.5; for this target it must be 1 or more.", 2),
        (["--out", "a/b"], "--out is 'a/b'; it must be a name, without slashes.", 2),
        (["--out", "tiny-target"], "--out is 'tiny-target', which another model is called.", 2),
        (["--layers", "9"], "--layers is 9; it must be a whole number between 1 and 8.", 2),
        (["--texts", "chats"], "Your chats are read only if you say so. Add --yes.", 2),
        (["--texts", "chats", "--yes"], "--texts chats: prompts found: 0; training needs 16 or more.", 2),
        (["--texts", "nothing.txt"], "Cannot read nothing.txt: No such file or directory.", 2),
        (["--eval", "nothing.gguf"], "nothing.gguf", 3),
    ],
)
@pytest.mark.usefixtures("with_torch")
def test_what_cannot_be_is_one_sentence(
    command: Command, own: Path, arguments: list[str], sentence: str, code: int
) -> None:
    result = command("train", str(own), *arguments)
    assert sentence in result.err
    assert result.code == code
    assert "Traceback" not in result.err
    assert not work_folder("own-draft").exists()


def test_without_torch_one_sentence(command: Command, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    result = command("train", str(own))
    assert result.err.endswith('Training needs PyTorch, which is not installed. pip install "localspec[train]"\n')
    assert result.code == 2


@pytest.mark.usefixtures("with_torch")
def test_targets_that_cannot_be_cut_are_one_sentence(command: Command, own: Path, tmp_path: Path) -> None:
    other = architectures.write("gemma3", tmp_path)
    result = command("train", str(other))
    assert "No draft model can be cut from gemma3.gguf: its architecture is gemma3." in result.err
    assert result.code == 3
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(own.read_bytes()[:100_000])
    result = command("train", str(damaged))
    assert result.code == 3
    assert "damaged.gguf" in result.err


@pytest.mark.usefixtures("with_torch")
def test_what_does_not_fit_is_refused_with_numbers(
    command: Command, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.paths.free_bytes", lambda folder: 1_000_000)
    result = command("train", str(own))
    assert result.code == 3
    assert "of disk, and 1.0 MB are free." in result.err
    assert not work_folder("own-draft").exists()


def environment(own: Path) -> dict[str, str]:
    return {**os.environ, "LOCALSPEC_DATA": str(own.parent / "data")}


def arguments(own: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "localspec", "train", str(own), "--minutes", "1", "--json", *more]


@pytest.mark.trial
@pytest.mark.skipif(not TORCH, reason="torch is not installed")
def test_a_whole_run(command: Command, own: Path) -> None:
    done = subprocess.run(
        arguments(own), env=environment(own), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["equal"] == told["prompts"] >= 4
    assert told["tokens_a_pass"] > 1.2
    assert "training 100%" in done.stderr or "measuring" in done.stderr
    folder = work_folder("own-draft")
    assert {"checkpoint.pt", "course.json", "own-draft.gguf", "own-draft.html"} <= {
        file.name for file in folder.iterdir()
    }
    draft = Store().find("own-draft")
    assert draft is not None
    assert read_header(draft.path).text("localspec.training.texts") == "localspec's own list of prompts"
    assert len(read_header(draft.path).text(TRAINED_FOR)) == 64
    assert "own-draft" in command("list").out
    with Engine.load(own, drafter="none") as plain, Engine.load(own, "own-draft") as drafted:
        for seed in range(4):
            sampling = SamplingParams(temperature=seed % 2)
            prompt = plain.tokenize("Sort: 4, 2, 9, 7", special=False)
            first = plain.generate(prompt, sampling=sampling, seed=seed, max_tokens=40).text()
            assert drafted.generate(prompt, sampling=sampling, seed=seed, max_tokens=40).text() == first
    other = command("train", str(own), "--minutes", "1", "--layers", "3")
    assert "own-draft is being trained with other --layers. Give another --out, or --fresh to begin anew." in other.err
    measured = command("train", str(own), "--eval", "own-draft", "--json")
    assert json.loads(measured.out)["equal"] == 20
    assert "what it was trained with" in command("rm", "--force", "own-draft").out
    assert not folder.exists()


@pytest.mark.trial
@pytest.mark.skipif(not TORCH, reason="torch is not installed")
def test_ten_kills(own: Path) -> None:
    """Killed at ten random moments, it ends as a run that was not killed: a whole file, and a loss like the other's."""
    losses, chosen = [], random.Random(5)
    for name, kills in (("calm", 0), ("killed", 10)):
        for _ in range(kills):
            running = subprocess.Popen(
                arguments(own, "--out", name),
                env=environment(own),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                running.wait(chosen.uniform(1.0, 25.0))
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        done = subprocess.run(
            arguments(own, "--out", name),
            env=environment(own),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        folder = own.parent / "data" / "training" / name
        assert not list(folder.glob(".*.part"))
        assert read_header(folder / f"{name}.gguf").tensors
        torch = pytest.importorskip("torch")
        losses.append(torch.load(folder / "checkpoint.pt", weights_only=True)["loss"])
    assert abs(losses[1] - losses[0]) < 0.25 * losses[0], losses


def test_what_was_not_finished_is_removed_by_its_name(command: Command, own: Path) -> None:
    work_folder("own-draft").mkdir(parents=True)
    (work_folder("own-draft") / "checkpoint.pt").write_bytes(b"x" * 2_000_000)
    result = command("rm", "own-draft")
    assert result.out == "own-draft: what it was trained with: 2.0 MB given back.\n"
    assert not work_folder("own-draft").exists()
    assert command("rm", "own-draft").code == 3


@pytest.mark.usefixtures("with_torch")
def test_fewer_minutes_than_before_are_refused(command: Command, own: Path) -> None:
    from localspec.checks import prompts
    from localspec.training.course import PROMPTS, Course

    folder = work_folder("own-draft")
    folder.mkdir(parents=True)
    learned, held = prompts.gather([])
    nothing: Any = None
    course = Course(own, "own-draft", "", learned, held, nothing, TrainingPlan(60.0, 1, 1, 1, 1, 1, ()), 2, None)
    state = course._state()
    assert state.minutes == 60.0
    assert prompts.read(folder / PROMPTS, "") == (learned, held)
    result = command("train", str(own), "--minutes", "15")
    assert result.err.endswith(
        "--minutes is 15; own-draft was begun with 60. Give as many or more, which go on with it, or --fresh to begin "
        "anew.\n"
    )
    assert result.code == 2


def test_a_head_is_not_measured_as_a_draft_model(command: Command, own: Path) -> None:
    result = command("train", str(own), "--eval", str(SHIPPED["dspark"]))
    assert "only draft models are measured." in result.err
    assert result.code == 2


def test_a_run_beside_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.processes import Claim
    from localspec.training.course import Course

    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    nothing: Any = None
    course = Course(tmp_path, "mine", "", (), (), nothing, nothing, 2, None)
    course.folder.mkdir(parents=True)
    claim = Claim(course.folder / "lock")
    earlier = course.folder / "checkpoint.pt"
    earlier.touch()
    with pytest.raises(LocalspecError, match="mine is being trained by another process"):
        course.run(nothing, fresh=True)
    assert earlier.exists(), "what another run works with stays"
    claim.release()
    with pytest.raises(IsADirectoryError):  # the target
        course.run(nothing, fresh=True)
    assert not earlier.exists()
