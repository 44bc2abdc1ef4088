"""Wide kernels through our own door: exact at every width, and no concern of models that do not use them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import Engine, Message
from localspec.config import CacheChoice, EngineSettings
from localspec.llama.cache.context import Context
from localspec.llama.exact import wide, widths
from localspec.llama.exact.wide import Kernels
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.runtime.loading import load_models
from tests.llama.digests import SETTINGS, digests, passes
from tests.llama.keys import key

needs_library = pytest.mark.skipif(not wide.available(), reason=f"no wide kernels here: {wide.status().reason}")


@pytest.fixture(scope="module")
def wide_model(tiny_target: Path) -> Iterator[Model]:
    """The bundled target, its weights packed for wide passes."""
    with Model.load(tiny_target, kernels="wide") as loaded:
        yield loaded


ALONE = """
from localspec.llama.library import lib
from localspec.llama.cache.context import Context
from localspec.llama.model import Model
from tests.llama.digests import SETTINGS, digests
"""


def in_a_process_of_its_own(code: str) -> str:
    """What a fresh Python prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_library
@pytest.mark.parametrize("threads", [1, 2])
def test_every_width_is_exact_at_every_length(wide_model: Model, threads: int) -> None:
    settings = ContextSettings(n_ctx=1400, threads=threads)
    found = widths.examine(wide_model, settings, widest=32, budget=600.0)
    assert found == frozenset(range(1, 33))
    assert len(widths.probe_lengths(settings.n_ctx)) == 4


@needs_library
def test_slots_are_exact_too(wide_model: Model) -> None:
    settings = ContextSettings(n_ctx=700, threads=2, n_slots=3)
    found = widths.examine(wide_model, settings, widest=8, budget=600.0)
    assert found == frozenset(range(1, 9))


@needs_library
def test_trees_are_exact_too(wide_model: Model) -> None:
    settings = ContextSettings(n_ctx=700, threads=2, max_leaves=4)
    found = widths.examine(wide_model, settings, widest=8, budget=600.0)
    assert found == frozenset(range(1, 9))


@needs_library
def test_the_number_of_threads_changes_no_bit(wide_model: Model) -> None:
    found = []
    for threads in (1, 2, 3):
        context = Context(wide_model, ContextSettings(n_ctx=1024, threads=threads))
        found.append(digests(context))
        context.close()
    assert found[0] == found[1] == found[2]


@needs_library
def test_models_with_and_without_it_do_not_disturb_each_other(tiny_target: Path, wide_model: Model) -> None:
    alone = in_a_process_of_its_own(
        ALONE + f"print(*digests(Context(Model.load({str(tiny_target)!r}), SETTINGS)))\n"
        "assert 'wide' not in [found.name for found in lib.devices()]"
    ).split()
    with Model.load(tiny_target) as model:
        ours, theirs = Context(wide_model, SETTINGS), Context(model, SETTINGS)
        expected = digests(ours)
        assert digests(theirs) == alone != expected
        turns = list(zip(passes(ours), passes(theirs), strict=True))
        assert [pair[0] for pair in turns] == expected
        assert [pair[1] for pair in turns] == alone
        wide.set_switch(wide.MOST_ROWS)
        assert digests(theirs) == alone
        wide.set_switch(0)
        assert digests(ours) == expected
        ours.close()
        theirs.close()


@needs_library
def test_neither_do_they_on_threads_of_their_own(tiny_target: Path, wide_model: Model) -> None:
    with Model.load(tiny_target) as model:
        contexts = [Context(wide_model, SETTINGS), Context(model, SETTINGS)]
        expected = [digests(context) for context in contexts]
        found: list[list[list[str]]] = [[], []]

        def repeat(index: int) -> None:
            found[index] = [digests(contexts[index]) for _ in range(3)]

        threads = [threading.Thread(target=repeat, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[alone] * 3 for alone in expected]
        for context in contexts:
            context.close()


@pytest.mark.trial
@needs_library
def test_engines_with_and_without_it_in_one_process(tiny_target: Path, tiny_draft: Path) -> None:
    """Their texts are those each writes alone, whoever writes at the same time."""

    def load(kernels: Kernels) -> Engine:
        cache: CacheChoice = "f16" if kernels == "wide" else "bf16"  # each with one that is exact
        settings = EngineSettings(
            tiny_target, tiny_draft, exact="strict", context=1024, threads=2, kernels=kernels, cache=cache
        )
        return Engine(load_models(settings))

    def answers(engine: Engine) -> list[list[int]]:
        texts = ("Sort: 4, 2, 9", "Repeat this text exactly: the quick brown fox", "Tell me about rivers.")
        running = [engine.chat([Message("user", text)], seed=3, max_tokens=24) for text in texts]
        return [(generation.text(), generation.tokens)[1] for generation in running]

    expected = {}
    names: list[Kernels] = ["wide", "repacked"]
    for kernels in names:
        with load(kernels) as engine:
            assert engine.loaded.model.kernels == kernels
            expected[kernels] = answers(engine)
    with load("wide") as ours, load("repacked") as theirs:
        found: dict[Kernels, list[list[int]]] = {}
        thread = threading.Thread(target=lambda: found.update({"repacked": answers(theirs)}))
        thread.start()
        found["wide"] = answers(ours)
        thread.join()
        assert found == expected


@needs_library
def test_no_wide_leaves_the_library_out_of_the_process(tiny_target: Path) -> None:
    out = in_a_process_of_its_own(
        "from localspec import Engine\n"
        "from localspec.llama.library import lib\n"
        "def names(): return [found.name for found in lib.devices()]\n"
        f"with Engine.load({str(tiny_target)!r}, context=64, threads=1, wide=False) as engine:\n"
        "    engine.generate('Hello', max_tokens=3).text()\n"
        "    print('wide' in names(), engine.loaded.model.kernels)\n"
        f"with Engine.load({str(tiny_target)!r}, context=64, threads=1) as engine:\n"
        "    print('wide' in names())\n"
    )
    assert out.split() in (["False", "repacked", "True"], ["False", "plain", "True"])


def test_without_the_library_nothing_is_wide(tiny_target: Path, tmp_path: Path) -> None:
    """As on a machine without it: the reason is said, and everything works."""
    out = in_a_process_of_its_own(
        "import os\n"
        f"os.environ['LOCALSPEC_WIDE_LIBRARY'] = {str(tmp_path / 'none.so')!r}\n"
        "from localspec import Engine\n"
        "from localspec.checks.doctor import examine_machine\n"
        "from localspec.errors import ModelError\n"
        "from localspec.llama.exact import wide\n"
        "from localspec.llama.model import Model\n"
        f"with Engine.load({str(tiny_target)!r}, context=64, threads=1) as engine:\n"
        "    engine.generate('Hello', max_tokens=3).text()\n"
        "    print(engine.loaded.model.kernels != 'wide', wide.available())\n"
        "print(*[finding.value for finding in examine_machine() if finding.name == 'wide kernels'])\n"
        f"try: Model.load({str(tiny_target)!r}, kernels='wide')\n"
        "except ModelError as error: print(error)\n"
    ).splitlines()
    assert out[0] == "True False"
    assert "none.so" in out[1]
    assert "none.so" in out[2]
    assert len(out) == 3


def test_keys_do_not_depend_on_its_presence_but_on_what_it_is(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(tiny_target, SETTINGS, 8)
    ours = [device for device in lib.devices() if device.name != "wide"]
    monkeypatch.setattr(lib, "devices", lambda: ours)
    assert key(tiny_target, SETTINGS, 8) == before
    keys = set()
    for identity in (("avx512", "a"), ("avx512", "b"), ("avx2", "a")):
        monkeypatch.setattr(wide, "identity", lambda identity=identity: identity)
        keys.add(key(tiny_target, SETTINGS, 8, kernels="wide"))
        assert key(tiny_target, SETTINGS, 8) == before
    assert len(keys) == 3
