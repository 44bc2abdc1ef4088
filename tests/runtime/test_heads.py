"""Heads beside the target: found, attached, fed with states through the real engine, dropped. The text is plain's."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.config import EngineSettings
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.heads import head as heads
from localspec.errors import DecodeError, KernelError, LocalspecError, ModelError, ModelFileError, PairError, UsageError
from localspec.gguf import read_header
from localspec.llama.cache.context import Context
from localspec.llama.exact.choice import LoadedTarget, choose
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings, Tap
from localspec.llama.model import Model, file_sha256
from localspec.machine import Place
from localspec.models.facts import heads as head_files
from localspec.models.memory.fit import MIB, FitSettings, plan
from localspec.native import kernels
from localspec.runtime.engine import Engine
from localspec.types import Rule, SamplingParams
from tests.drafters import mtp_files
from tests.drafters.shipped_heads import SHIPPED, target_of
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, write
from tests.runtime import nearest_head
from tests.runtime.nearest_head import Nearest, NearestHead

CPU = Place("CPU", "cpu", 1 << 34)
BUFFER = re.compile(r"(?:KV|compute|output) buffer size = *([\d.]+) MiB")
PROMPTS = ["Count: one two three one two three one two", "A list. Apples, pears, apples, pears, apples"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nearest_head.write(tmp_path_factory.mktemp("heads") / "nearest")


@pytest.fixture(scope="module", autouse=True)
def _module() -> Iterator[None]:
    """The method's module is this one while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.drafters.heads.final_state.load_mlp", nearest_head.load)
        yield


@pytest.fixture(scope="module")
def engine(tiny_target: Path, folder: Path) -> Iterator[Engine]:
    with Engine.load(tiny_target, heads=[folder], threads=1, exact="strict") as loaded:
        yield loaded


def head_of(engine: Engine) -> NearestHead:
    (head,) = engine.loaded.heads
    assert isinstance(head, NearestHead)
    return head


def last_drafter(engine: Engine) -> Nearest:
    return head_of(engine).drafters[-1]


def texts(engine: Engine, drafter: str, temperature: float) -> list[str]:
    sampling = SamplingParams(temperature=temperature)
    answers = [
        engine.generate(prompt, sampling=sampling, seed=5, max_tokens=40, ignore_end=True, drafter=drafter)
        for prompt in PROMPTS
    ]
    found = [answer.text() for answer in answers]
    if drafter == "mlp":
        assert all(answer.stats.exact and answer.stats.drafted > 10 for answer in answers)
        assert sum(answer.stats.accepted for answer in answers) > 0
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_reads_every_state_and_the_text_is_plains(engine: Engine, temperature: float) -> None:
    engine.configure(drafter="mlp", max_draft_tokens=3)
    drafter = last_drafter(engine)
    assert texts(engine, "mlp", temperature) == texts(engine, "none", temperature)
    assert drafter.spans
    assert all((start, stop) == (0, length - 1) for length, start, stop in drafter.spans)


def test_it_is_one_of_those_in_auto_and_may_be_asked_for_by_name(engine: Engine) -> None:
    engine.configure(drafter="auto", max_draft_tokens=None)
    assert engine.drafters == ("grammar", "lookup", "suffix", "habits", "mlp")
    assert engine.loaded.trained == ("mlp",)
    before = last_drafter(engine)
    engine.configure(drafter="mlp")
    assert before.closed
    assert not last_drafter(engine).closed
    with pytest.raises(UsageError, match="`eagle3` needs a head trained for the target"):
        engine.configure(drafter="eagle3")


def test_forgetting_shows_it_another_text(engine: Engine) -> None:
    engine.configure(drafter="mlp", max_draft_tokens=3)
    texts(engine, "mlp", 0.0)
    engine.forget()
    assert last_drafter(engine).spans[-1] == (3, 0, 2)
    assert engine.loaded.context.cached(0) == 0


def test_layers_of_the_targets_own_that_cannot_be_loaded_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(head: object, target: object, branches: int) -> None:
        raise ModelError("there is no memory for it.")

    monkeypatch.setattr("localspec.drafters.heads.head.Head.attach", refuse)
    with Engine.load(SHIPPED["mtp"], threads=1, context=256, exact="off") as engine:
        assert engine.drafters == ("grammar", "lookup", "suffix", "habits")
        assert engine.loaded.context.states is None
        answer = engine.generate("Hi", max_tokens=4, ignore_end=True)
        answer.text()
        assert len(answer.tokens) == 4
        with pytest.raises(UsageError, match="There is no drafter called 'mtp' here"):
            engine.generate("Hi", drafter="mtp")
    assert "there is no memory for it. Answers go on without mtp." in caplog.text
    with pytest.raises(ModelError, match="no memory"):
        Engine.load(SHIPPED["mtp"], threads=1, context=256, exact="off", drafter="mtp")


def test_layers_of_the_targets_own_are_loaded_where_they_may_guess(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"threads": 1, "context": 256, "exact": "off"}
    with Engine.load(SHIPPED["mtp"], drafter="lookup", **settings) as engine:
        assert not engine.loaded.heads
        assert not engine.loaded.model.has_nextn
        with pytest.raises(UsageError, match="`mtp` is not loaded"):
            engine.configure(drafter="mtp")

    def refuse(*arguments: Any, tap: Tap, **options: Any) -> LoadedTarget:
        if tap.nextn:
            raise ModelError("there is no memory for it.")
        return choose(*arguments, tap=tap, **options)

    monkeypatch.setattr("localspec.runtime.loading.choose", refuse)
    with pytest.raises(ModelError, match="no memory"):
        Engine.load(SHIPPED["mtp"], drafter="mtp", **settings)
    with Engine.load(SHIPPED["mtp"], **settings) as engine:
        assert engine.drafters == ("grammar", "lookup", "suffix", "habits")
    assert "Loading goes on without the layers of multi-token prediction" in caplog.text


def test_layers_of_the_targets_own_that_cannot_be_run_are_left_out(tmp_path: Path) -> None:
    path = mtp_files.copy(tmp_path / "split.gguf", architecture="mimo2")  # its keys are no part of one matrix
    settings, target = EngineSettings(path), read_header(path)
    assert heads.find_all(settings, target) == []
    with pytest.raises(ModelFileError, match=r"lacks the tensor blk\.4\.attn_qkv\.weight of its MTP layer"):
        heads.find_all(replace(settings, drafter="mtp"), target)


def test_a_head_is_no_target(tmp_path: Path, folder: Path) -> None:
    alone = mtp_files.companion(tmp_path / "mtp-alone.gguf")
    for given in ([], [alone], [folder]):
        with pytest.raises(PairError, match=r"mtp-alone\.gguf cannot be a target: it is a multi-token-prediction head"):
            Engine.load(alone, heads=given)
    with pytest.raises(PairError, match="cannot be a target: it is an EAGLE-3 head"):
        Engine.load(SHIPPED["eagle3"])


@pytest.mark.parametrize("rule", [Rule.COUPLED, Rule.REJECTION])
def test_one_that_fails_is_dropped_and_the_chat_goes_on(
    rule: Rule, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KernelError("the matrix has 7 columns.")

    settings: dict[str, Any] = {"threads": 1, "context": 256, "exact": "off"}
    with Engine.load(tiny_target, heads=[SHIPPED["medusa"]], drafter="medusa", **settings) as engine:
        monkeypatch.setattr(kernels, "matvec", fail)
        answer = engine.generate("Hi", rule=rule, max_tokens=12, ignore_end=True)
        assert len(answer.text()) > 0
        assert len(answer.tokens) == 12
        assert engine.dropped == {"medusa": "the matrix has 7 columns."}


def test_without_memory_for_one_that_is_asked_for_that_is_said(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("localspec.models.facts.heads.Tensors.matrix", fail)
    with pytest.raises(ModelError, match=r"There is no memory for tiny-medusa, which drafts as medusa\."):
        Engine.load(tiny_target, heads=[SHIPPED["medusa"]], threads=1, context=256, exact="off")


def test_one_that_fails_while_it_forgets_is_dropped_alone(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DecodeError("a pass failed.")

    files = [SHIPPED[method] for method in ("eagle3", "medusa")]
    with Engine.load(tiny_target, heads=files, threads=1, context=256, exact="off") as engine:
        engine.configure(drafter="auto", max_draft_tokens=3)
        monkeypatch.setattr("localspec.drafters.heads.eagle.Eagle3Context._compute", fail)
        engine.forget()
        assert engine.dropped == {"eagle3": "a pass failed."}
        assert engine.loaded.trained == ("medusa",)
        states = engine.loaded.context.states
        assert states is not None
        assert states.tap == Tap(final="decoded"), "what nobody reads any more is not kept"
        answer = engine.generate("Hi", drafter="medusa", max_tokens=12, ignore_end=True)
        answer.text()
        assert answer.stats.drafted > 0


def test_shedding_frees_what_they_draw_from(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [SHIPPED[method] for method in ("eagle3", "medusa", "pard")]
    with Engine.load(tiny_target, heads=files, threads=1, context=256, exact="off") as engine:
        engine.generate("Hi", drafter="medusa", max_tokens=4, ignore_end=True).text()
        plan, context = engine.loop.plan, engine.loaded.context
        drawn = [one._context for one in plan.drafters if isinstance(one, DraftModel)]
        held = [weakref.ref(one) for one in (*drawn, context.states)]
        assert len(held) == 4
        drawn.clear()
        assert engine.on_engine_thread(lambda: engine.shed_draft("little memory is left"))
        gc.collect()
        assert [one() for one in held] == [None] * 4
        monkeypatch.setattr(context, "decode", lambda feeds: pytest.fail("nobody is there to show another text"))
        engine.forget()


def test_slots_read_their_own_states(tiny_target: Path, folder: Path) -> None:
    with Engine.load(
        tiny_target, heads=[folder], threads=1, slots=2, drafter="mlp", max_draft_tokens=3, exact="strict"
    ) as engine:
        together = texts(engine, "mlp", 0.8)
        assert all((start, stop) == (0, length - 1) for length, start, stop in last_drafter(engine).spans)
        assert together == texts(engine, "none", 0.8)


def test_without_memory_it_is_dropped_and_the_chat_goes_on(tiny_target: Path, folder: Path) -> None:
    with Engine.load(tiny_target, folder, threads=1, max_draft_tokens=3, exact="strict") as engine:
        assert engine.settings.draft is None, "a draft that is a head counts as one"
        assert last_drafter(engine).spans == [(3, 0, 2)], "it has computed before anybody asked"
        head, expected = head_of(engine), texts(engine, "none", 0.0)
        assert engine.on_engine_thread(lambda: engine.shed_draft("little memory is left"))
        assert engine.dropped == {"mlp": "little memory is left"}
        assert head.closed
        assert engine.loaded.trained == ()
        assert engine.loaded.context.states is None
        assert texts(engine, "auto", 0.0) == expected
    head.close()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("wide", PairError, "hidden size: 256 in the target, 512 in the head"),
        ("twice", UsageError, "are both drafters called mlp"),
        ("whole", UsageError, "is a whole model, not a head"),
        ("forked", PairError, r"in the format of a fork of llama\.cpp \(dflash-draft\), which localspec cannot draft"),
        ("empty", ModelFileError, "holds no weights"),
        ("odd", PairError, "cannot draft: it is no head of a kind localspec knows"),
        ("none", UsageError, "`mlp` needs a head trained for the target"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_loaded(
    given: str, error: type[LocalspecError], words: str, folder: Path, tiny_target: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    forked = gguf_bytes(TINY_METADATA | {"general.architecture": "dflash-draft"})
    paths = {
        "wide": [nearest_head.write(tmp_path / "wide", 512)],
        "twice": [folder, nearest_head.write(tmp_path / "other")],
        "whole": [tiny_target],
        "forked": [write(tmp_path / "forked.gguf", forked)],
        "empty": [tmp_path / "empty"],
        "odd": [nearest_head.write(tmp_path / "odd", model_type="bert")],
        "none": [],
    }[given]
    with pytest.raises(error, match=words):
        Engine.load(tiny_target, heads=paths, drafter="mlp", progress=lambda what, _: pytest.fail(f"{what}: loaded"))


def test_one_trained_for_another_file_is_said(
    folder: Path, tiny_target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = read_header(tiny_target)
    heads.find(folder, target)
    heads.find(nearest_head.write(tmp_path / "right", target_sha256=file_sha256(tiny_target)), target)
    assert not caplog.records
    heads.find(nearest_head.write(tmp_path / "other", target_sha256="ab" * 32), target)
    assert "was trained for another file (sha256 abababababab...)" in caplog.text


@pytest.mark.parametrize("method", ["dflash", "dspark", "eagle3", "medusa", "mtp", "pard"])
def test_no_less_memory_is_planned_than_it_takes(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lib, "log", lib.Log(100_000))
    file, target, length = SHIPPED[method], read_header(target_of(method)), 512
    shapes = () if method == "mtp" else heads.shapes(target, [file])  # its own layers are counted unasked
    shares = plan(target, None, FitSettings(context=length, heads=shapes), [CPU]).shares
    (planned,) = (share for share in shares if share.model == "heads")
    head = heads.find(file, target)
    with Model.load(target.path, nextn=True) as model:
        context, mark = Context(model, ContextSettings(n_ctx=length, threads=1), tap=head.tap), lib.log.mark()
        head.attach(context, 1)
        taken = sum(float(found[1]) * MIB for _, line in lib.log.since(mark) if (found := BUFFER.search(line)))
        head.close()
        context.close()
    states = 2 * len(head.tap.everything) * target.number("embedding_length") * length
    assert (taken > 0) == (method != "medusa")
    assert planned.cache + planned.compute >= taken + states
    files = head_files.weights_of(file) if file.is_dir() else [file]
    assert planned.weights >= (0 if method == "mtp" else 0.9 * sum(one.stat().st_size for one in files))


def test_what_a_head_copies_of_its_target_is_planned(tiny_target: Path, tmp_path: Path) -> None:
    target, folder = read_header(tiny_target), nearest_head.write(tmp_path / "eagle", model_type="eagle")
    without, beside = (
        plan(target, None, FitSettings(512, heads=shapes), [CPU]) for shapes in ((), heads.shapes(target, [folder]))
    )
    output, rows = 4096 * (256 + 4), (2 + 8) * 256 * 512
    assert beside.shares[1].weights == 10 + output
    assert beside.shares[1].cache == rows
    assert beside.shares[0].compute > without.shares[0].compute, "logits of whole prompts"
