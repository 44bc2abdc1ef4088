"""What is installed, what the machine can do, which passes are exact and what they cost; and what to do about it: the
lines of `localspec doctor` and of the doctor screen, and a report for an issue.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from localspec import __version__, kept, machine, paths
from localspec.errors import UsageError
from localspec.gguf.split import read_parts
from localspec.llama.exact import wide
from localspec.llama.exact.wide import read_limits
from localspec.llama.library import lib
from localspec.llama.library.handle import ordinal_of
from localspec.llama.model import Model
from localspec.machine import ROOT, Place, ram, taken, text_of
from localspec.models.facts import facts
from localspec.models.installed.catalog import Catalog
from localspec.models.memory import gpu
from localspec.native.kernels import KERNELS
from localspec.native.library import FILE_NAME, REINSTALL
from localspec.runtime import memory, placement
from localspec.runtime.engine import Engine
from localspec.runtime.kept import tuning
from localspec.runtime.loaded import Loaded


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    value: str
    """What was found, with numbers."""
    advice: str = ""
    """What to do, in a sentence; "" = all is well."""
    command: str = ""
    """What to type for it, or the option to start localspec with; "" = nothing to type."""


_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"
"""Makers of graphics cards, by their numbers on the PCI bus."""
_DISPLAY = "0x03"
"""How the PCI class of a graphics card begins."""
_LEAST_VRAM = 2 << 30
"""Bytes of its own from which on a GPU of AMD's counts as a card; processors with graphics set less aside."""
_BUILD = (
    "CMAKE_ARGS=-DGGML_{}=on pip install --force-reinstall --no-deps --no-cache-dir "
    "--no-binary llama-cpp-python llama-cpp-python=={}"
)
"""It serves in place of localspec-llama, too."""


def examine_devices(
    info: lib.Info, root: Path = ROOT, which: Callable[[str], str | None] = shutil.which
) -> Iterator[Finding]:
    """A finding per device that llama.cpp lists, and one about a build without a GPU: how to build it for the card that
    is here.
    """
    listed = memory.gpus()
    places = {one.name: one for one in listed}
    for device in info.devices:
        room = f", {device.free_bytes / 2**30:.1f} of {device.total_bytes / 2**30:.1f} GiB free"
        use = ""
        if device.name in places:
            why = gpu.why_unused(places[device.name], listed)
            use = f"; not used by default: {why}" if why else "; used by default"
        if ordinal_of(device.name) is not None:
            use += "; it lists logits, by a kernel that is tried out"
        yield Finding(f"device {device.name}", f"{device.description}{room if device.total_bytes else ''}{use}")
    if not info.gpu_offload:
        advice = command = ""
        if (card := backend(root, which)) is not None:
            advice = f"This machine seems to have a GPU of {card[0]}; build llama-cpp-python for it."
            command = _BUILD.format(card[1], lib.PINNED)
        what = f"this {info.bindings.distribution} was built without GPU support"
        yield Finding("GPU", what, advice, command)


def backend(root: Path, which: Callable[[str], str | None]) -> tuple[str, str] | None:
    """(maker of a card that is here, llama.cpp's build option for it without GGML_); None = no card is seen.

    AMD's cards get ROCm where its compiler is installed, else Vulkan, as Intel's do. Graphics of Intel's processors,
    which sit on the first bus, are left out: they are not used by default.
    """
    cards = [(path.name, text_of(path / "vendor"), path) for path in sorted((root / "sys/bus/pci/devices").glob("*"))]
    cards = [card for card in cards if text_of(card[2] / "class").startswith(_DISPLAY)]
    if which("nvidia-smi") or any(maker == _NVIDIA for _, maker, _ in cards):
        return "NVIDIA", "CUDA"
    own = {path: text_of(path / "mem_info_vram_total") for _, maker, path in cards if maker == _AMD}
    if any(int(size) >= _LEAST_VRAM for size in own.values() if size.isdigit()):
        return "AMD", "HIP" if which("hipcc") and (root / "dev/kfd").exists() else "VULKAN"
    if any(maker == _INTEL and not address.startswith("0000:00:") for address, maker, _ in cards):
        return "Intel", "VULKAN"
    return None


def examine_layers(loaded: Loaded) -> Iterator[Finding]:
    """What of the loaded models runs where, and what that was decided by if real passes did; nothing on a machine
    without a GPU.
    """
    if not memory.gpus(loaded.settings.rpc):
        return
    words = f"target: {_where(loaded.model)}"
    if loaded.draft_model is not None:
        words += f"; draft model: {_where(loaded.draft_model)}"
    free = replace(loaded.settings, gpu_layers="auto", draft_gpu_layers="auto", device=None, draft_device=None)
    if (found := placement.measured(free)) is not None:
        words += f"; while answering {found.words}"
    if loaded.gpu_fault:
        yield Finding("layers", f"{words}; the GPU failed: {loaded.gpu_fault}", "Try the GPU again.", "--gpu-layers -1")
    else:
        yield Finding("layers", words)


def _where(model: Model) -> str:
    if not model.gpu_layers:
        return "on the CPU"
    count = "all layers" if model.gpu_layers < 0 else f"{model.gpu_layers} layers"
    spread = f" ({model.spread})" if str(model.spread) else ""
    return f"{count} on {model.device or 'the GPU'}{spread}"


_CHECK_SECONDS = 5.0
"""That our kernels' check of themselves may take here; without vector instructions it takes some seconds."""
_CROWDED_LOAD_PER_CPU = 1.5
"""Programs that want to run per CPU, from which on ours waits noticeably."""
_TIGHT_BYTES = 512 << 20
_OPENMP = re.compile(r"lib(gomp|omp|iomp)\d*[-.].*")
"""File names of GNU's, LLVM's and Intel's runtime; wheels put a hash after the name."""


def examine_machine(with_wide: bool = True) -> Iterator[Finding]:
    """Versions, C library, llama.cpp, devices, folders, and wide kernels, which are loaded to see whether they can be
    used if they are wanted.
    """
    yield Finding("localspec", f"{__version__}, Python {platform.python_version()} on {platform.platform()}")
    yield _packages(lib.installed())
    yield Finding("kernels", f"{FILE_NAME}, using {KERNELS.isa}")
    yield Finding("CPU features", KERNELS.cpu_features)
    info = lib.info()
    modules = "".join(f" ({name})" for name in lib.backends())
    yield Finding("llama.cpp", f"{info.version}{modules}: {info.system}")
    yield _wide_kernels(with_wide)
    yield from examine_openmp()  # once all that uses it is loaded
    yield from examine_devices(info)
    yield Finding("threads", f"{machine.default_threads()} (of {os.cpu_count()} logical CPUs)")
    yield _folder("data", paths.data_dir())
    yield _folder("cache", paths.cache_dir())


def examine_openmp(root: Path = ROOT) -> Iterator[Finding]:
    """Which OpenMP runtime is loaded in this process, with advice if there are several: the threads of each compete for
    the cores with those of the others. Nothing where none is known (only Linux tells).
    """
    found = sorted(file for file in machine.mapped_files(root) if _OPENMP.fullmatch(Path(file).name))
    advice = (
        f"{len(found)} OpenMP runtimes in one process make decoding two to three times slower; "
        "reinstall localspec and localspec-llama (or llama-cpp-python) so that both use the same one."
    )
    if found:
        yield Finding("OpenMP", ", ".join(found), advice if len(found) > 1 else "")


def examine_machine_state(model_bytes: int = 0, root: Path = ROOT, load: float | None = None) -> Iterator[Finding]:
    """Load, memory, power: what can be seen now. What the system does not tell is left out; so is the size of the
    files in use where it is 0.
    """
    load, count = machine.load() if load is None else load, os.cpu_count() or 1
    if load is not None:
        value = f"{load:.1f} programs want to run on {count} CPUs (mean of the last minute, this one included)"
        crowded = load > _CROWDED_LOAD_PER_CPU * count
        yield Finding("load", value, "Other programs take the CPUs; end them, or use fewer threads." if crowded else "")
    yield _memory(ram(root), model_bytes)
    if machine.on_battery(root):
        yield Finding("power", "on battery", "Laptops compute slower on battery; plug it in.")
    clock = root / "sys/devices/system/cpu/cpu0/cpufreq"
    governor, driver = text_of(clock / "scaling_governor"), text_of(clock / "scaling_driver")
    if governor:
        # under these drivers "powersave" is the usual one and does not hold the clock down
        lazy = governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp")
        better = ("The CPUs are kept at their lowest clock.", "sudo cpupower frequency-set -g performance")
        yield Finding("clock", f"governor {governor}{f' ({driver})' if driver else ''}", *(better if lazy else ()))


def _memory(memory: Place, model_bytes: int) -> Finding:
    free, total = memory.free_bytes, memory.total_bytes
    value = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    if model_bytes:
        value += f", the model's files have {model_bytes / 2**30:.2f} GiB"
    if total and model_bytes > total:
        why = "The model is larger than memory, so weights are read from the disk again and again; take a smaller one."
        return Finding("memory", value, why, "localspec search MODEL")
    tight = bool(free) and free < _TIGHT_BYTES
    return Finding("memory", value, "Little memory is left; close programs or use a shorter context." if tight else "")


def _packages(used: lib.Bindings) -> Finding:
    versions = dict(_versions("numpy", "torch"))
    others = (f"{name} {versions.get(name, 'not installed')}" for name in ("numpy", "torch"))
    words = ", ".join([f"{used.distribution} {used.version}", *others])
    if not used.unused:
        return Finding("packages", words)
    why = f"{used.unused} is installed, but not used: localspec needs {lib.PINNED}."
    return Finding("packages", words, why, lib.advice().removeprefix("Run: "))


def _tuning(engine: Engine) -> Finding:
    settings = engine.settings
    found = tuning.read(settings.target, settings.draft)
    if found is None:
        return Finding("tuning", "none; `localspec tune` looks for settings that are faster here than the defaults")
    unused = [name for name, value in found.settings.items() if getattr(settings, name) != value]
    unused_words = f"; not in use: {', '.join(unused)}" if unused else ""
    return Finding("tuning", f"{found}{unused_words}")


def _wide_kernels(wanted: bool) -> Finding:
    name, path = "wide kernels", wide.find_library()
    if not wanted:
        return Finding(name, "not asked for (--no-wide)")
    found = wide.status()
    if found.available:
        return Finding(name, f"{found.isa} ({path})")
    if path is None and sys.platform != "win32":
        return Finding(
            name, f"not used: {found.reason}", "Install gcc or clang with OpenMP, then localspec again.", REINSTALL
        )
    return Finding(name, f"not used: {found.reason}")


def _folder(name: str, folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        advice = f"Set LOCALSPEC_{name.upper()} to a folder that can be written."
        return Finding(name, f"{folder}: {error.strerror}", advice)
    low = free < 2**30
    return Finding(name, f"{folder}, {free / 2**30:.1f} GiB free", "Free some disk space." if low else "")


def examine_disk() -> Iterator[Finding]:
    for place in kept.PLACES:
        where, size = place.size()
        yield Finding("disk", f"{decimal(size):>10}  {where}: {place.what}")


def examine_engine(engine: Engine) -> Iterator[Finding]:
    """The loaded pair: files, exactness, exact widths, cost of a pass by width."""
    loaded = engine.loaded
    yield Finding("target", f"{loaded.model.path} ({loaded.model.path.stat().st_size / 2**20:.1f} MiB)")
    draft = loaded.draft_model
    yield Finding("draft model", "none" if draft is None else f"{draft.path} ({draft.kernels} kernels)")
    for head in loaded.heads:
        yield Finding(f"{head.name} head", str(head.path))
    yield from examine_layers(loaded)
    yield _tuning(engine)
    widths = loaded.context.exact_widths
    advice = command = ""
    if widths is None and engine.settings.exact == "auto":
        advice = "Drafts may change the text. Compare the bits of real passes once, which takes minutes."
        command = "--exact strict"
    elif widths is not None and max(widths) == 1:
        advice = "Only one row is exact, so nothing is drafted; without exactness drafts may change the text."
        command = "--exact off"
    slots = loaded.context.settings.n_slots
    at_once = f"{slots} answered at once" if slots > 1 else "one answered at a time"
    why = f": {loaded.single}" if loaded.single else ""
    yield Finding("context", f"{loaded.context.n_ctx:,} tokens a conversation, {at_once}{why}")
    now, most = (each / 2**20 for each in taken())
    if now:
        yield Finding("process", f"takes {now:,.0f} MiB of memory now, {most:,.0f} at most since it began")
    yield examine_kernels(loaded.model)
    yield from _self_check(engine)
    yield Finding("passes", loaded.exactness, advice, command)
    yield Finding("exact widths", "unknown" if widths is None else " to ".join(dict.fromkeys(("1", f"{max(widths)}"))))
    for length, costs in sorted(loaded.pass_seconds.items()):
        base = costs.get(1)
        if base:
            row = ", ".join(
                f"{width}: {cost * 1e3:.1f} ms ({cost / base:.2f}x)" for width, cost in sorted(costs.items())
            )
            yield Finding(f"pass at {length} tokens", f"{row}; {_source(engine)}")


def examine_kernels(model: Model) -> Finding:
    """Whose kernels serve a model; with ours, which of its formats they do not pack."""
    left = facts.unpacked_words(read_parts(model.path)) if model.kernels == "wide" else ""
    name, advice = "target's kernels", "A file of the model in another format, such as Q4_K_M, is quicker."
    return Finding(name, f"{model.kernels}; {left}", advice) if left else Finding(name, model.kernels)


def _source(engine: Engine) -> str:
    widths = sorted(engine.loaded.knowledge.costs.timed)
    if widths:
        return f"measured at widths {', '.join(map(str, widths))}, the rest estimated"
    ours = engine.loaded.model.kernels == "wide"
    known = read_limits(engine.loaded.context.threads) if ours else None
    return f"estimated from {'this machine' if known else 'an average machine'}'s memory and arithmetic"


def _self_check(engine: Engine) -> Iterator[Finding]:
    check = engine.loaded.self_check
    if check is None:
        return
    check.run(_CHECK_SECONDS)
    if check.fault:
        yield Finding("kernels' check", f"failed: {check.fault} depend on the width", "Please report it.")
    else:
        yield Finding("kernels' check", "passed" if check.passed else "goes on in idle time")


# Whether a newer localspec is out: asked of PyPI once, only when the user asks.

ADDRESS = "https://pypi.org/pypi/localspec/json"
"""PyPI's JSON about a project; `info.version` is its newest release."""
SECONDS = 3.0
"""Longest wait for a connection, and for each piece of the answer, in seconds."""


def examine_updates(address: str = ADDRESS, installed: str = __version__) -> Finding:
    """Asks PyPI for the newest release. Nothing is sent but the request for the page."""
    import httpx2 as httpx  # 60 ms, not needed for other findings

    from localspec.models.hub.hub import certificates, check_proxies

    try:
        check_proxies()
        certificates()
        answer = httpx.get(address, timeout=SECONDS, follow_redirects=True)
        answer.raise_for_status()
        newest = str(answer.json()["info"]["version"])
    except UsageError as error:
        return Finding("updates", f"not known: {error.message}", error.hint)
    except httpx.HTTPStatusError as error:
        return Finding("updates", f"not known: PyPI answered {error.response.status_code}")
    except httpx.TimeoutException:
        return Finding("updates", f"not known: PyPI did not answer within {SECONDS:.0f} seconds")
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return Finding("updates", f"not known: {error!r}")
    if _numbers(newest) > _numbers(installed):
        command = "pip install --upgrade localspec"
        return Finding("updates", f"{newest} is out, {installed} is installed", "A newer release is out.", command)
    return Finding("updates", f"none: {installed} is installed, and the newest release is {newest}")


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: (0, 2, 1) of "0.2.1.dev3"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(one) for one in found[0].split(".")) if found else ()


_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Names of variables whose values are left out."""
_OURS = re.compile(r"(LOCALSPEC|GGML|LLAMA|OMP|GOMP|KMP|CUDA|HF)_\w+")
"""Names of variables that can change what localspec does; no others are written."""
_LEFT_OUT = "(left out)"
_SHORTEST_SECRET = 6
"""Characters; a shorter value would be found in text that has nothing to do with it."""


def bundle(
    findings: Sequence[Finding], settings: Mapping[str, Any], environment: Mapping[str, str], keys: Collection[str] = ()
) -> str:
    """A report for an issue as JSON, without prompts, answers, keys and the user's name; people read it before they
    attach it.

    Values of variables that hold a key by their name, or are named by `keys`, are left out wherever they stand.
    """
    needed = importlib.metadata.requires("localspec") or []
    names = (re.match(r"[\w.-]+", line) for line in needed if "extra ==" not in line)
    secret_names = {name for name in environment if name in keys or _SECRET.search(name)}
    data = {
        "versions": dict(_versions("localspec", *(found[0] for found in names if found))),
        "findings": [asdict(finding) for finding in findings],
        "settings": dict(settings),
        "environment": {
            name: _LEFT_OUT if name in secret_names else value
            for name, value in sorted(environment.items())
            if _OURS.fullmatch(name)
        },
    }
    text = json.dumps(data, indent=2, default=str, ensure_ascii=False)
    for secret in (environment[name] for name in secret_names):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(_as_json(secret), _LEFT_OUT)
    return text.replace(_as_json(os.path.expanduser("~")), "~") + "\n"


def _as_json(text: str) -> str:
    """How it stands inside a string of the report."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def write_bundle(path: Path, findings: Sequence[Finding], settings: Mapping[str, Any]) -> None:
    keys = {entry.key_env for entry in Catalog.load().endpoints.values()}
    text = bundle(findings, settings, os.environ, keys)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # JSON's way to write a name that is no text


def _versions(*packages: str) -> Iterator[tuple[str, str]]:
    """Packages and their versions, as far as they are installed."""
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)
