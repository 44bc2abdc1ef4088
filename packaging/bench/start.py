"""How long the first token takes from the start of the program, beside a bare llama.cpp loop on the same files.

    python packaging/bench/start.py [--target FILE [--draft FILE]] [--rounds 3] [--busy]
    python packaging/bench/start.py [--rounds 3] [--busy] FILE...     # where a start and memory go, by part

Each start is a process of its own. The contenders take turns, and medians are printed: the bare loop, `localspec run`
with an empty home (the very first start) and again with that home, and `localspec serve` from the moment its port
answers. `--busy` keeps every core busy with another process meanwhile. Files are read before, so that the disk does not
count; and as much memory as they take is used and freed before each start, since a virtual machine that has given
memory back to its host waits seconds for a gigabyte of it.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from localspec import machine, paths

PROMPT = "Repeat this text exactly: Maria bought 12 lanterns in Lisbon."
BARE = """
import sys, ctypes
import llama_cpp as c
path, threads, text = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
quiet = c.llama_log_callback(lambda *_: None)
c.llama_log_set(quiet, None)
c.llama_backend_init()
model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
params = c.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch = 4096, 512, 512
params.n_threads = params.n_threads_batch = threads
context, vocab = c.llama_init_from_model(model, params), c.llama_model_get_vocab(model)
tokens = (ctypes.c_int32 * 512)()
count = c.llama_tokenize(vocab, text, len(text), tokens, 512, True, True)
assert c.llama_decode(context, c.llama_batch_get_one(tokens, count)) == 0
sampler = c.llama_sampler_init_greedy()
print(c.llama_sampler_sample(sampler, context, -1), flush=True)
"""

PARTS = """
import json, re, sys, time
last = time.perf_counter()
from localspec import Engine
from localspec.llama import model
from localspec.llama.exact import choice, wide
from localspec.llama.library import lib
from localspec.machine import taken
from localspec.runtime import loading
spent, sizes, stack = {}, {}, ["imports"]
def begin(what):
    global last
    now = time.perf_counter()
    spent[stack[-1]] = spent.get(stack[-1], 0.0) + now - last
    stack[-1], last = what, now
def part(what, owner, name):
    inner = getattr(owner, name)
    def outer(*given, **named):
        begin(stack[-1])
        stack.append(what)
        made = inner(*given, **named)
        begin(stack[-1])
        stack.pop()
        return made
    setattr(owner, name, outer)
def heard(text):
    if "load_tensors: loading" in text:
        begin("mapping")
    for what, size in re.findall("(KV|compute|output) buffer size = +([0-9.]+)", text):
        sizes[f"{what} buffers, if full"] = sizes.get(f"{what} buffers, if full", 0.0) + float(size) * 2**20
def reported(self, share, data, told=model._Progress.__call__):
    begin("packing" if share < 1 else "vocabulary")
    return told(self, share, data)
lib.log.echo, model._Progress.__call__ = heard, reported
part("header", loading, "check_text_model")
part("header", model, "check_text_model")
part("vocabulary", model.Model, "load")
part("context", choice, "_context")
part("graph questions", choice, "by_construction")
part("self check", wide.SelfCheck, "run")
begin("the rest of loading")
before, engine, loaded = taken()[0], Engine.load(sys.argv[1], slots=4), taken()[0]
for what in ("first pass", "later first pass"):
    begin(what)
    engine.generate("Say hi.", max_tokens=1).text()
begin("")
mapped = 1024 * int(re.search("RssFile:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1])
sizes |= {"program": before, "weights and context": loaded - before, "answers": taken()[0] - loaded}
sizes |= {"at most": taken()[1], "mapped pages of all": mapped}
print(json.dumps([spent, {what: size / 1e6 for what, size in sizes.items()}]))
"""
"""Prints {part of a model's start: seconds} and {part of its memory: megabytes}."""


def show_parts(models: Sequence[Path], rounds: int) -> None:
    """Where a start and memory go, a column a model; last the two processes of `serve` after an answer."""
    rows: dict[tuple[str, str], dict[Path, list[float]]] = {}
    for model in list(models) * rounds:
        with tempfile.TemporaryDirectory() as home:
            warm_memory([model])
            seen = subprocess.check_output([sys.executable, "-c", PARTS, str(model)], env=at_home(Path(home)))
            held = served([sys.executable, "-m", "localspec", "serve", "--target", str(model)], Path(home))[2]
        for unit, parts in zip(("s", "MB"), json.loads(seen), strict=True):
            for part, value in (parts | (held if unit == "MB" else {})).items():
                rows.setdefault((part, unit), {}).setdefault(model, []).append(value)
    print(f"{'median of ' + str(rounds):34}", *(f"{model.stem[:16]:>16}" for model in models))
    for (part, unit), by_model in rows.items():
        values = (statistics.median(by_model.get(model, [0.0])) for model in models)
        print(f"{part + ', ' + unit:34}", *(f"{value:16.{3 if unit == 's' else 0}f}" for value in values))


def warm_memory(files: Sequence[Path]) -> None:
    """Uses and frees twice the memory that the files take."""
    memory = mmap.mmap(-1, 2 * sum(file.stat().st_size for file in files))
    for start in range(0, len(memory), mmap.PAGESIZE):
        memory[start] = 1
    memory.close()


def at_home(home: Path) -> dict[str, str]:
    """The environment of a process that keeps its files below `home`."""
    return {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": "", "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": ""}


def first_output(command: list[str], home: Path) -> tuple[float, str]:
    """(seconds from the start of a process to its first output, what it says about exactness)."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=at_home(home)) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            raise SystemExit(f"{command[0]} said nothing: {process.communicate()[1].decode()}")
        seconds = time.perf_counter() - started
        _, errors = process.communicate()
    return seconds, next((line for line in errors.decode().splitlines() if "exact:" in line), "")


def served(command: list[str], home: Path) -> tuple[float, float, dict[str, float]]:
    """(seconds until the port answers, seconds from then to the first token, megabytes of each process then)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=at_home(home)
    )
    try:
        while not _answers(port):
            time.sleep(0.005)
        answering = time.perf_counter()
        body = {"prompt": PROMPT, "stream": True, "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            next(line for line in answer if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"])
        first = time.perf_counter() - answering
        child = machine.holder(Path(command[command.index("--target") + 1]), process.pid)
        held = [machine.taken(one)[0] / 1e6 for one in (process.pid, child)]
        return answering - started, first, dict(zip(("serve: front", "serve: child"), held, strict=True))
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # 503: it is loading
    except OSError:
        return False


@contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Keeps every core busy with another process."""
    others = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1) if wanted]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def _spin() -> None:
    while True:
        pass


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", type=Path, nargs="*", metavar="FILE", help="where a start and memory go instead")
    parser.add_argument("--target", type=Path, help="the bundled one, if not given")
    parser.add_argument("--draft", type=Path, help="a draft model; the bundled one, unless --target is given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="beside a process on every core")
    options = parser.parse_args()
    if options.models:
        with busy(options.busy):
            show_parts(options.models, options.rounds)
        return
    draft = options.draft or (None if options.target else paths.bundled("tiny-draft-q8_0.gguf"))
    weights = [options.target or paths.bundled("tiny-target-q8_0.gguf"), *([draft] if draft else [])]
    for file in weights:
        with open(file, "rb") as data:
            while data.read(1 << 24):
                pass
    localspec = str(Path(sys.executable).with_name("localspec"))
    files = ["--target", str(weights[0]), *(["--draft", str(draft)] if draft else [])]
    run = [localspec, "run", *files, "--stats", PROMPT]
    from localspec.machine import default_threads

    bare = [sys.executable, "-c", BARE, str(weights[0]), str(default_threads()), PROMPT]
    found: dict[str, list[float]] = {}
    said = set[str]()
    with busy(options.busy):
        for _ in range(options.rounds):
            home = Path(tempfile.mkdtemp())
            try:
                warm_memory(weights)
                found.setdefault("bare llama.cpp loop", []).append(first_output(bare, home)[0])
                for name in ("run, first start", "run, later"):
                    warm_memory(weights)
                    seconds, exact = first_output(run, home)
                    found.setdefault(name, []).append(seconds)
                    said.add(exact.rpartition("exact:")[2].strip())
                warm_memory(weights)
                port, first, _ = served([localspec, "serve", *files], home)
                found.setdefault("serve: port answers", []).append(port)
                found.setdefault("serve: first token after that", []).append(first)
            finally:
                shutil.rmtree(home, ignore_errors=True)
    base = statistics.median(found["bare llama.cpp loop"])
    print(f"{'median of ' + str(options.rounds):34}{'seconds':>9}{'less the bare loop':>20}")
    for name, all_ in found.items():
        print(f"{name:34}{statistics.median(all_):9.2f}{statistics.median(all_) - base:20.2f}")
    print(f"exact: {', '.join(sorted(said))}")


if __name__ == "__main__":
    main()
