"""Loading, vocabulary facts, text and tokens; damaged files give one sentence, never an abort of the process."""

from __future__ import annotations

import gc
import importlib.util
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from localspec.errors import Cancelled, LocalspecError, ModelError, ModelFileError, UsageError
from localspec.llama.cache.context import Context
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model, file_sha256
from localspec.types import Feed
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors, write
from tests.quantised import quantize


def test_vocabulary_facts(model: Model) -> None:
    assert model.n_vocab == 4096
    assert model.bos == 0
    assert model.add_bos
    assert model.eos in model.end_tokens
    assert model.n_ctx_train == 2048
    assert model.can_trim
    assert model.chat_template
    assert model.text_of(None) == ""
    assert model.text_of(model.bos)
    assert model.header.metadata["general.architecture"] == "llama"
    assert model.sha256 == file_sha256(model.path)
    assert len(model.sha256) == 64


@pytest.mark.parametrize("words", ["Hello, world!", "", "  two  spaces\n\ttab", "Grüße, 東京 🚀", "a\0b", "\ud800"])
def test_text_to_tokens_and_back(model: Model, words: str) -> None:
    tokens = model.tokenize(words, special=False, add_bos=True)
    assert tokens.dtype == np.int32
    assert tokens[0] == model.bos
    assert model.detokenize(tokens) == words.encode("utf-8", "replace").decode()
    assert b"".join(model.piece(int(token)) for token in tokens).decode() == model.detokenize(tokens)


def test_special_tokens_are_read_only_when_asked(model: Model) -> None:
    assert model.eos is not None
    end = model.text_of(model.eos)
    assert model.tokenize(end, special=True, add_bos=False).tolist() == [model.eos]
    assert len(model.tokenize(end, special=False, add_bos=False)) > 1
    assert model.piece(model.eos) == b""
    assert model.piece(model.eos, special=True).decode() == end
    with pytest.raises(UsageError, match="4095"):
        model.piece(4096)
    with pytest.raises(UsageError):
        model.text_of(-1)


def test_progress_is_reported_and_can_cancel(tiny_target: Path) -> None:
    seen: list[float] = []

    def note(share: float) -> bool:
        seen.append(share)
        return True

    Model.load(tiny_target, progress=note).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    with pytest.raises(Cancelled):
        Model.load(tiny_target, progress=lambda share: False)

    def interrupt(share: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Model.load(tiny_target, progress=interrupt)


def test_weights_unpacked_unmapped_and_on_a_named_device(tiny_target: Path) -> None:
    with Model.load(tiny_target, kernels="plain", use_mmap=False, device="CPU") as loaded:
        assert loaded.kernels == "plain"
    with pytest.raises(UsageError, match=r"no device 'TPU9'.*CPU"):
        Model.load(tiny_target, device="TPU9")


def test_amx_kernels_of_llama_cpp_are_not_used(tiny_target: Path, tmp_path: Path) -> None:
    """They may crash. Builds for other CPUs have none of them."""
    quantize(tiny_target, tmp_path / "q8_0.gguf", "Q8_0", threads=1)
    mark = lib.log.mark()
    with Model.load(tmp_path / "q8_0.gguf", kernels="repacked") as loaded:
        context = Context(loaded, ContextSettings(n_ctx=64, threads=1))
        context.decode([Feed(0, np.arange(5, 40, dtype=np.int32), 1)])
        context.close()
    assert not [line for _, line in lib.log.since(mark) if "AMX model buffer" in line]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "nope"}, "unknown model architecture: 'nope'"),
        ({"general.architecture": ""}, "names no architecture"),
        ({"general.architecture": "clip"}, "image projector"),
        ({"general.type": "adapter"}, "LoRA adapter"),
        ({"llama.attention.causal": False}, "embedding model"),
        ({"llama.block_count": 0}, "block_count is 0"),
        ({"llama.block_count": 5}, "blk.1.attn_norm.weight' not found"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "epsilon is -1.0"),
        ({"llama.expert_count": 4}, "4 experts"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 9}, "9 of 4 experts"),
        ({"tokenizer.ggml.model": "what"}, "unknown tokenizer"),
    ],
)
def test_what_cannot_generate_text(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    path = write(tmp_path / "model.gguf", gguf_bytes({**TINY_METADATA, **changes}))
    with pytest.raises(ModelFileError, match=words) as caught:
        Model.load(path)
    assert str(path) in caught.value.message


def test_other_damage(tmp_path: Path) -> None:
    no_tokenizer = {key: value for key, value in TINY_METADATA.items() if not key.startswith("tokenizer")}
    with pytest.raises(ModelFileError, match="no tokenizer"):
        Model.load(write(tmp_path / "a.gguf", gguf_bytes(no_tokenizer)))
    with pytest.raises(ModelFileError, match="no weights"):
        Model.load(write(tmp_path / "b.gguf", gguf_bytes(tensors=[])))
    with pytest.raises(ModelFileError, match=r"llama\.cpp cannot load"):
        Model.load(write(tmp_path / "c.gguf", gguf_bytes(tensors=tiny_tensors()[:-1])))
    with pytest.raises(ModelFileError, match="does not exist"):
        Model.load(tmp_path / "none.gguf")
    whole = gguf_bytes()
    for length in (0, 3, 50, 3000, len(whole) - 1):
        with pytest.raises(ModelFileError):
            Model.load(write(tmp_path / "d.gguf", whole[:length]))
    with Model.load(write(tmp_path / "odd näme.gguf", whole)) as tiny:
        assert tiny.n_vocab == 260
        context = Context(tiny, ContextSettings(n_ctx=64, threads=1))
        assert np.isfinite(context.decode([Feed(0, np.array([1, 5], np.int32), 2)])[0][0]).all()
        with pytest.raises(ModelError, match="does not divide"):
            Context(tiny, ContextSettings(n_ctx=64, threads=1, type_k="q8_0", type_v="q8_0"))


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    metadata = {key.replace("llama.", "t5encoder."): value for key, value in TINY_METADATA.items()}
    path = write(tmp_path / "t5.gguf", gguf_bytes({**metadata, "general.architecture": "t5encoder"}))
    with pytest.raises(ModelFileError):
        Model.load(path)


@pytest.mark.parametrize(
    ("key", "count", "words"),
    [
        ("nextn_predict_layers", 2, "2 of its 1 layers predict ahead"),
        ("block_count", 513, r"llama\.block_count is 513"),
    ],
)
def test_numbers_of_layers_that_would_end_the_process(key: str, count: int, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf_bytes({**TINY_METADATA, f"llama.{key}": count}))
    with pytest.raises(ModelFileError, match=f"is corrupt: {words}"):
        Model.load(path)


def test_a_missing_part_of_a_split_model(tmp_path: Path) -> None:
    path = write(tmp_path / "m-00001-of-00002.gguf", gguf_bytes({**TINY_METADATA, "split.count": 2}))
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf is missing"):
        Model.load(path)


def test_quantize(model: Model, tmp_path: Path) -> None:
    path = quantize(model.path, tmp_path / "small.gguf", "q4_0", threads=1)
    with Model.load(path) as small:
        assert small.header.quantisation == "Q4_0"
        assert small.header.file_bytes < model.header.file_bytes
        assert small.header.tokens == model.header.tokens
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UsageError, match="Q4_K_M"):
        quantize(model.path, tmp_path / "x.gguf", "Q9")
    with pytest.raises(LocalspecError, match="cannot be written"):
        quantize(model.path, tmp_path / "none" / "x.gguf", "Q4_0")


def test_loading_again_and_again_leaks_nothing(tiny_target: Path) -> None:
    def once() -> None:
        with Model.load(tiny_target) as loaded:
            context = Context(loaded, ContextSettings(n_ctx=512, threads=1))
            context.decode([Feed(0, np.arange(5, 25, dtype=np.int32), 20)])

    for _ in range(3):
        once()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(15):
        once()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 12_000, f"{grown} KiB more for 15 loads of a model of 6 MB"


def test_closing_the_model_closes_its_contexts(tiny_target: Path) -> None:
    loaded = Model.load(tiny_target)
    context = Context(loaded, ContextSettings(n_ctx=64, threads=1))
    loaded.close()
    loaded.close()
    with pytest.raises(UsageError, match="closed"):
        context.decode([Feed(0, np.array([1], np.int32), 1)])
    with pytest.raises(UsageError, match="closed"):
        Context(loaded, ContextSettings(n_ctx=64))
    with pytest.raises(UsageError, match="closed"):
        loaded.tokenize("a", special=False, add_bos=False)
    with pytest.raises(UsageError, match="closed"):
        loaded.detokenize([100])


def test_nothing_reaches_stderr_and_the_import_is_lazy(tiny_target: Path) -> None:
    script = f"""
import sys
import localspec.gguf, localspec.llama.model as m, localspec.llama.cache.context as c, localspec.llama.exact.choice
assert "llama_cpp" not in sys.modules, "llama_cpp is imported before it is needed"
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
model = m.Model.load({str(tiny_target)!r})
context = c.Context(model, ContextSettings(n_ctx=64, threads=1))
assert lib.log.since(0)
try:
    m.Model.load({__file__!r})
except m.ModelFileError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def lines(log: lib.Log) -> list[str]:
    return [line for _, line in log.since(0)]


def test_lines_for_debugging_are_left_out_with_what_continues_them() -> None:
    log = lib.Log()
    for level, text in (
        (2, "one\n"),
        (1, "input tensor"),
        (5, " of a graph\n"),
        (4, "two"),
        (5, " words\n"),
        (1, "x\n"),
    ):
        log.add(level, text)
    assert lines(log) == ["one", "two words"]


def test_log_joins_pieces_and_finds_reasons() -> None:
    log = lib.Log(capacity=3)
    log.add(2, "load: tensors ")
    log.add(5, "...\n")
    mark = log.mark()
    log.add(4, "llama_model_load: error loading model: key not found: x\nmore: this\n")
    assert lines(log)[0] == "load: tensors ..."
    assert log.reason(mark) == "key not found: x"
    assert log.reason(log.mark()) == ""
    log.add(2, "a\nb\n")
    assert lines(log) == ["more: this", "a", "b"]


def test_info_names_the_build() -> None:
    info = lib.info()
    assert info.bindings.version == lib.PINNED
    assert "CPU" in info.system
    assert any(device.kind == "cpu" for device in info.devices)


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_only_the_binding_is_imported_and_the_package_itself_still_can_be(tiny_target: Path) -> None:
    code = (
        "import sys\n"
        "from localspec.llama.library import lib\n"
        "binding, more = lib.api(), lib.extension()\n"
        "print('llama_cpp.llama' in sys.modules)\n"
        "import llama_cpp\n"
        "print(llama_cpp.llama_cpp is binding, llama_cpp.__version__ == lib.PINNED, llama_cpp.Llama.__name__)\n"
        "from localspec.llama.model import Model\n"
        "Model.load(sys.argv[1]).close()\n"
        "print(any('tensors' in line for _, line in lib.log.since(0)))\n"
    )
    command = [sys.executable, "-c", code, str(tiny_target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True", "True", "Llama", "True"], done.stderr
    assert "llama_model_loader" not in done.stderr, "the package took the log over, and lost it again"
