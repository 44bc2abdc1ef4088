"""Our kernels' check of themselves: it passes here, and a library whose bits depend on the width is found out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.gguf import PACKED
from localspec.kept import FactStore
from localspec.llama.exact import wide
from localspec.llama.exact.wide import SelfCheck

pytestmark = pytest.mark.skipif(not wide.available(), reason=wide.status().reason)
SOURCES = Path(__file__).parents[3] / "native/wide"
COMPILER = shutil.which("cc")


def test_every_case_passes_here_and_is_remembered(tmp_path: Path) -> None:
    check = SelfCheck(FactStore(tmp_path), 2)
    assert not check.over
    steps = 0
    while not check.over:
        check.step()
        steps += 1
    assert steps == len(PACKED) + len(wide._CACHES) * len(wide._HEAD_SIZES)
    assert (check.passed, check.fault) == (True, "")
    again = SelfCheck(FactStore(tmp_path), 2)
    assert (again.over, again.passed) == (True, True)
    assert not SelfCheck(FactStore(tmp_path), 1).over, "with other threads it is another check"
    check.step()
    assert check.passed


def test_it_ends_when_its_time_is_over(tmp_path: Path) -> None:
    check = SelfCheck(FactStore(tmp_path), 2)
    check.run(0.0)
    assert not check.over
    assert not list(tmp_path.iterdir())
    check.run(60.0)
    assert check.passed


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"passed": 1}', "\0"])
def test_a_damaged_file_is_tried_again(tmp_path: Path, content: str) -> None:
    SelfCheck(FactStore(tmp_path), 2).run(60.0)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert not SelfCheck(FactStore(tmp_path), 2).over


def test_what_failed_before_has_failed(tmp_path: Path) -> None:
    SelfCheck(FactStore(tmp_path), 2).run(60.0)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({"fault": "products of F16 weights"}))
    check = SelfCheck(FactStore(tmp_path), 2)
    assert (check.over, check.passed, check.fault) == (True, False, "products of F16 weights")


def test_a_case_that_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wide, "_cases", lambda threads: [("products of nothing", lambda: 4)])
    check = SelfCheck(FactStore(tmp_path), 2)
    check.step()
    assert check.fault == "products of nothing"
    assert "products of nothing" in caplog.messages[-1]


def test_shapes_that_the_library_does_not_take() -> None:
    library = wide.library()
    not_taken = 1
    assert library.lsw_check_product(0, 2) == library.lsw_check_product(8, 0) == not_taken
    assert library.lsw_check_product(-1, 2) == library.lsw_check_product(99, 2) == not_taken
    for kind, size in ((1, 0), (1, -16), (1, 40), (8, 80), (99, 64), (1, 1 << 40)):
        assert library.lsw_check_attention(kind, size, 2) == not_taken
    assert library.lsw_check_attention(1, 80, 2) == 0


# -- a library that is wrong ------------------------------------------------------------------------------------------

_WHOLE, _FAULT = "lanes->tile(type, &t);", "t.output[0] += p->width > 4 ? 0.001f : 0.0f;"
_SCRIPT = """
import json, sys, time
from localspec.llama.exact import choice
from localspec.runtime import worker
from localspec.runtime.pool import Pool

worker._QUIET_SECONDS = 0.0
options = {"tuned": False, "context": 256, "drafter": "draft", "max_draft_tokens": 2}  # every pass drafts
pool = Pool(settings=options)
lease = pool.lease(pool.default)
loaded = lease.engine.loaded
found = [[loaded.model.kernels, loaded.context.exact_widths is not None]]
end = time.monotonic() + 60
while not lease.engine.outdated and time.monotonic() < end:
    time.sleep(0.02)
answer = lease.engine.generate("The river", max_tokens=8)
answer.text()
found.append([loaded.model.kernels, answer.stats.exact])
lease.release()
lease = pool.lease(pool.default)
loaded = lease.engine.loaded
found.append([loaded.model.kernels, loaded.context.exact_widths is not None])
lease.release()
pool.close()
print(json.dumps(found))
"""


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_a_library_whose_bits_depend_on_the_width_is_found_out_and_replaced(tmp_path: Path) -> None:
    library = tmp_path / "faulty.so"
    shutil.copytree(SOURCES, tmp_path / "wide")
    product = tmp_path / "wide/product.c"
    source = product.read_text()
    assert source.count(_WHOLE) == 1
    product.write_text(source.replace(_WHOLE, f"{_WHOLE} {_FAULT}"))
    flags = ["-std=c17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-fopenmp", "-DLSW_BUILD_SCALAR"]
    files = sorted(map(str, (tmp_path / "wide").glob("*.c")))
    assert COMPILER is not None
    subprocess.run([COMPILER, *flags, "-DLSW_HAVE_SCALAR", *files, "-o", str(library), "-lm"], check=True)
    environment = os.environ | {"LOCALSPEC_WIDE_LIBRARY": str(library), "LOCALSPEC_DATA": str(tmp_path / "data")}
    done = subprocess.run([sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True)
    before, failed, after = json.loads(done.stdout)
    assert before == ["wide", True], "what follows from the graph is believed until the kernels are tried"
    assert failed == ["wide", False], "from then on nothing is called exact"
    assert after[0] == "repacked", "and llama.cpp's kernels serve"
    assert "at different widths on this CPU" in done.stderr
