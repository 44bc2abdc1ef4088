"""What is installed, what the machine can do, which passes are exact and what they cost; and what to do about it: the
lines of `localspec doctor` and of the doctor screen, and a report for an issue.

Why is it slow? Findings from the figures of answers and the models in use, in plain words with numbers.
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
from shlex import quote
from typing import Any

from rich.filesize import decimal

from localspec import __version__, kept, machine, paths
from localspec.engine.stats import kept_comparison
from localspec.errors import UsageError
from localspec.gguf import read_parts
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.handle import ordinal_of
from localspec.llama.model import Model
from localspec.machine import ROOT, ram, taken, text_of
from localspec.models.facts.shape import unpacked
from localspec.models.installed.catalog import Catalog
from localspec.native.kernels import KERNELS
from localspec.native.library import FILE_NAME, REINSTALL
from localspec.runtime import memory, placement
from localspec.runtime.engine import Engine
from localspec.runtime.kept import tuning
from localspec.runtime.loaded import Loaded


@dataclass(frozen=True, slots=True)
class Remark:
    name: str
    value: str  # what was found, with numbers
    advice: str = ""  # what to do, in a sentence; "" = all is well
    command: str = ""  # what to type for it, or the option to start localspec with; "" = nothing to type


_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"  # makers of graphics cards, by their numbers on the PCI bus
_DISPLAY = "0x03"  # how the PCI class of a graphics card begins
_LEAST_VRAM = 2 << 30
"""Bytes of its own from which on a GPU of AMD's counts as a card; processors with graphics set less aside."""
_BUILD = (
    "CMAKE_ARGS=-DGGML_{}=on pip install --force-reinstall --no-deps --no-cache-dir "
    "--no-binary llama-cpp-python llama-cpp-python=={}"
)
"""It serves in place of localspec-llama, too."""
_LISTS = {"CUDA": "nvidia-smi", "ROCm": "rocminfo", "Vulkan": "vulkaninfo --summary"}
"""{backend: the program of its drivers that lists cards}."""


def examine_devices(
    info: lib.Info, root: Path = ROOT, which: Callable[[str], str | None] = shutil.which
) -> Iterator[Remark]:
    """A remark per device that llama.cpp lists, and of a build without a GPU how to build it for the card here."""
    listed = memory.gpus()
    places = {one.name: one for one in listed}
    for device in info.devices:
        room = f", {device.free_bytes / 2**30:.1f} of {device.total_bytes / 2**30:.1f} GiB free"
        use = ""
        if device.name in places:
            why = memory.why_unused(places[device.name], listed)
            use = f"; not used by default: {why}" if why else "; used by default"
        if ordinal_of(device.name) is not None:
            use += "; it lists logits, by a kernel that is tried out"
        yield Remark(f"device {device.name}", f"{device.description}{room if device.total_bytes else ''}{use}")
    if not info.gpu_offload:
        what, advice, command = f"this {info.bindings.distribution} was built without GPU support", "", ""
        if info.gpu_backends:
            what = f"this {info.bindings.distribution} was built for {', '.join(info.gpu_backends)}, and finds no GPU"
            advice = "Its driver shows no card to this user: this command must list it, in a container, too."
            command = _LISTS.get(info.gpu_backends[0], "")
        elif (card := backend(root, which)) is not None:
            advice = f"This machine seems to have a GPU of {card[0]}; build llama-cpp-python for it."
            command = _BUILD.format(card[1], lib.PINNED)
        yield Remark("GPU", what, advice, command)


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


def examine_layers(loaded: Loaded) -> Iterator[Remark]:
    """What of the models runs where, and what that was decided by if real passes did; nothing without a GPU."""
    if not memory.gpus(loaded.settings.rpc):
        return
    words = f"target: {_where(loaded.model)}"
    if loaded.draft_model is not None:
        words += f"; draft model: {_where(loaded.draft_model)}"
    free = replace(loaded.settings, gpu_layers="auto", draft_gpu_layers="auto", device=None, draft_device=None)
    if (found := placement.measured(free)) is not None:
        words += f"; while answering {found[1]}"
    if loaded.gpu_fault:
        yield Remark("layers", f"{words}; the GPU failed: {loaded.gpu_fault}", "Try the GPU again.", "--gpu-layers -1")
    else:
        yield Remark("layers", words)


def _where(model: Model) -> str:
    if not model.gpu_layers:
        return "on the CPU"
    count = "all layers" if model.gpu_layers < 0 else f"{model.gpu_layers} layers"
    spread = f" ({model.spread})" if str(model.spread) else ""
    return f"{count} on {model.device or 'the GPU'}{spread}"


_CHECK_SECONDS = 5.0
"""That our kernels' check of themselves may take here; without vector instructions it takes some seconds."""
_CROWDED_LOAD_PER_CPU = 1.5  # programs that want to run per CPU, from which on ours waits noticeably
_TIGHT_BYTES = 512 << 20
_OPENMP = re.compile(r"lib(gomp|omp|iomp)\d*[-.].*")
"""File names of GNU's, LLVM's and Intel's runtime; wheels put a hash after the name."""


def examine_machine(with_wide: bool = True) -> Iterator[Remark]:
    """Versions, C library, llama.cpp, devices, folders, and wide kernels, which are loaded if they are wanted."""
    yield Remark("localspec", f"{__version__}, Python {platform.python_version()} on {platform.platform()}")
    yield _packages(lib.installed())
    yield Remark("kernels", f"{FILE_NAME}, using {KERNELS.isa}")
    yield Remark("CPU features", KERNELS.cpu_features)
    info = lib.info()
    modules = "".join(f" ({name})" for name in lib.backends())
    yield Remark("llama.cpp", f"{info.version}{modules}: {info.system}")
    used, path = wide.status() if with_wide else None, wide.find_library()
    if used is None:
        yield Remark("wide kernels", "not asked for (--no-wide)")
    elif used.available:
        yield Remark("wide kernels", f"{used.isa} ({path})")
    else:
        build = ("Install gcc or clang with OpenMP, then localspec again.", REINSTALL)
        missing = path is None and sys.platform != "win32"
        yield Remark("wide kernels", f"not used: {used.reason}", *(build if missing else ()))
    yield from examine_openmp()  # once all that uses it is loaded
    yield from examine_devices(info)
    yield Remark("threads", f"{machine.default_threads()} (of {os.cpu_count()} logical CPUs)")
    yield _folder("data", paths.data_dir())
    yield _folder("cache", paths.cache_dir())


def examine_openmp(root: Path = ROOT) -> Iterator[Remark]:
    """Which OpenMP runtime is loaded in this process, with advice if there are several: the threads of each compete for
    the cores with those of the others. Nothing where none is known (only Linux tells).
    """
    found = sorted(file for file in machine.mapped_files(root) if _OPENMP.fullmatch(Path(file).name))
    advice = (
        f"{len(found)} OpenMP runtimes in one process make decoding two to three times slower; "
        "reinstall localspec and localspec-llama (or llama-cpp-python) so that both use the same one."
    )
    if found:
        yield Remark("OpenMP", ", ".join(found), advice if len(found) > 1 else "")


def examine_machine_state(model_bytes: int = 0, root: Path = ROOT, load: float | None = None) -> Iterator[Remark]:
    """Load, memory and power now, as far as the system tells; `model_bytes` are of the files in use, 0 = none."""
    load, count = machine.load() if load is None else load, os.cpu_count() or 1
    if load is not None:
        value = f"{load:.1f} programs want to run on {count} CPUs (mean of the last minute, this one included)"
        crowded = load > _CROWDED_LOAD_PER_CPU * count
        yield Remark("load", value, "Other programs take the CPUs; end them, or use fewer threads." if crowded else "")
    now, advice, command = ram(root), "", ""
    value = f"{now.free_bytes / 2**30:.1f} of {now.total_bytes / 2**30:.1f} GiB free"
    if model_bytes:
        value += f", the model's files have {model_bytes / 2**30:.2f} GiB"
    if now.total_bytes and model_bytes > now.total_bytes:
        advice = (
            "The model is larger than memory, so weights are read from the disk again and again; take a smaller one."
        )
        command = "localspec search MODEL"
    elif now.free_bytes and now.free_bytes < _TIGHT_BYTES:
        advice = "Little memory is left; close programs or use a shorter context."
    yield Remark("memory", value, advice, command)
    if machine.on_battery(root):
        yield Remark("power", "on battery", "Laptops compute slower on battery; plug it in.")
    clock = root / "sys/devices/system/cpu/cpu0/cpufreq"
    governor, driver = text_of(clock / "scaling_governor"), text_of(clock / "scaling_driver")
    if governor:
        # under these drivers "powersave" is the usual one and does not hold the clock down
        lazy = governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp")
        better = ("The CPUs are kept at their lowest clock.", "sudo cpupower frequency-set -g performance")
        yield Remark("clock", f"governor {governor}{f' ({driver})' if driver else ''}", *(better if lazy else ()))


def _packages(used: lib.Bindings) -> Remark:
    versions = dict(_versions("numpy", "torch"))
    others = (f"{name} {versions.get(name, 'not installed')}" for name in ("numpy", "torch"))
    words = ", ".join([f"{used.distribution} {used.version}", *others])
    if not used.unused:
        return Remark("packages", words)
    why = f"{used.unused} is installed, but not used: localspec needs {lib.PINNED}."
    return Remark("packages", words, why, lib.advice().removeprefix("Run: "))


def _folder(name: str, folder: Path) -> Remark:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        advice = f"Set LOCALSPEC_{name.upper()} to a folder that can be written."
        return Remark(name, f"{folder}: {error.strerror}", advice)
    low = free < 2**30
    return Remark(name, f"{folder}, {free / 2**30:.1f} GiB free", "Free some disk space." if low else "")


def examine_disk() -> Iterator[Remark]:
    for place in kept.PLACES:
        where, size = place.size()
        yield Remark("disk", f"{decimal(size):>10}  {where}: {place.what}")


def examine_engine(engine: Engine) -> Iterator[Remark]:
    """The loaded pair: files, exactness, exact widths, cost of a pass by width."""
    loaded = engine.loaded
    yield Remark("target", f"{loaded.model.path} ({loaded.model.path.stat().st_size / 2**20:.1f} MiB)")
    draft = loaded.draft_model
    yield Remark("draft model", "none" if draft is None else f"{draft.path} ({draft.kernels} kernels)")
    for head in loaded.heads:
        yield Remark(f"{head.name} head", str(head.path))
    yield from examine_layers(loaded)
    value = "none; `localspec tune` looks for settings that are faster here than the defaults"
    if (tuned := tuning.read(engine.settings.target, engine.settings.draft)) is not None:
        unused = [name for name, value in tuned.settings.items() if getattr(engine.settings, name) != value]
        value = f"{tuned}; not in use: {', '.join(unused)}" if unused else str(tuned)
    yield Remark("tuning", value)
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
    yield Remark("context", f"{loaded.context.n_ctx:,} tokens a conversation, {at_once}{why}")
    now, most = (each / 2**20 for each in taken())
    if now:
        yield Remark("process", f"takes {now:,.0f} MiB of memory now, {most:,.0f} at most since it began")
    yield examine_kernels(loaded.model)
    if (check := loaded.self_check) is not None:
        check.run(_CHECK_SECONDS)
        if check.fault:
            yield Remark("kernels' check", f"failed: {check.fault} depend on the width", "Please report it.")
        else:
            yield Remark("kernels' check", "passed" if check.passed else "goes on in idle time")
    yield Remark("passes", loaded.exactness, advice, command)
    yield Remark("exact widths", "unknown" if widths is None else " to ".join(dict.fromkeys(("1", f"{max(widths)}"))))
    if timed := sorted(loaded.knowledge.costs.timed):
        source = f"measured at widths {', '.join(map(str, timed))}, the rest estimated"
    else:
        known = wide.read_limits(loaded.context.threads) if loaded.model.kernels == "wide" else None
        source = f"estimated from {'this machine' if known else 'an average machine'}'s memory and arithmetic"
    for length, costs in sorted(loaded.pass_seconds.items()):
        base = costs.get(1)
        if base:
            row = ", ".join(
                f"{width}: {cost * 1e3:.1f} ms ({cost / base:.2f}x)" for width, cost in sorted(costs.items())
            )
            yield Remark(f"pass at {length} tokens", f"{row}; {source}")


def examine_kernels(model: Model) -> Remark:
    """Whose kernels serve a model; with ours, which of its formats they do not pack."""
    left = unpacked(read_parts(model.path))[1] if model.kernels == "wide" else ""
    name, advice = "target's kernels", "A file of the model in another format, such as Q4_K_M, is quicker."
    return Remark(name, f"{model.kernels}; {left}", advice) if left else Remark(name, model.kernels)


# Whether a newer localspec is out: asked of PyPI once, only when the user asks.

ADDRESS = "https://pypi.org/pypi/localspec/json"  # PyPI's JSON about a project; `info.version` is its newest release
SECONDS = 3.0  # longest wait for a connection, and for each piece of the answer, in seconds


def examine_updates(address: str = ADDRESS, installed: str = __version__) -> Remark:
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
        return Remark("updates", f"not known: {error.message}", error.hint)
    except httpx.HTTPStatusError as error:
        return Remark("updates", f"not known: PyPI answered {error.response.status_code}")
    except httpx.TimeoutException:
        return Remark("updates", f"not known: PyPI did not answer within {SECONDS:.0f} seconds")
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return Remark("updates", f"not known: {error!r}")
    if _numbers(newest) > _numbers(installed):
        command = "pip install --upgrade localspec"
        return Remark("updates", f"{newest} is out, {installed} is installed", "A newer release is out.", command)
    return Remark("updates", f"none: {installed} is installed, and the newest release is {newest}")


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: (0, 2, 1) of "0.2.1.dev3"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(one) for one in found[0].split(".")) if found else ()


_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Names of variables whose values are left out."""
_OURS = re.compile(r"(LOCALSPEC|GGML|LLAMA|OMP|GOMP|KMP|CUDA|HF)_\w+")
"""Names of variables that can change what localspec does; no others are written."""
_LEFT_OUT = "(left out)"
_SHORTEST_SECRET = 6  # characters; a shorter value would be found in text that has nothing to do with it


def bundle(
    findings: Sequence[Remark], settings: Mapping[str, Any], environment: Mapping[str, str], keys: Collection[str] = ()
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


def write_bundle(path: Path, findings: Sequence[Remark], settings: Mapping[str, Any]) -> None:
    keys = {entry.key_env for entry in Catalog.load().endpoints.values()}
    text = bundle(findings, settings, os.environ, keys)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # JSON's way to write a name that is no text


def _versions(*packages: str) -> Iterator[tuple[str, str]]:
    """Packages and their versions, as far as they are installed."""
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


# Nothing is timed below: what answers took is in their stats, what passes cost is learned from them.

_ENOUGH_DRAFTED = 40
_ENOUGH_TOKENS = 40
_BAD_ACCEPTANCE = 0.25
_MUCH_DRAFTING = 0.45
_MUCH_HOST = 0.25
_MUCH_PREFILL = 0.5
_SLOWER_RATIO = 0.97
_LONG_CONTEXT = 1.5

_COUNTED = (
    "generated_tokens", "drafted", "accepted", "passes", "guarded_passes",
    "draft_seconds", "verify_seconds", "host_seconds", "prefill_seconds",
)  # fmt: skip
"""Figures of `RequestStats.as_dict` that are added up."""


def examine_answers(answers: Sequence[Mapping[str, Any]]) -> Iterator[Remark]:
    """What the last answers of one model say, by their stats as `RequestStats.as_dict` gives them."""
    answers = [one for one in answers if (one.get("generated_tokens") or 0) > 0]
    total = {name: sum(float(one.get(name) or 0) for one in answers) for name in _COUNTED}
    shares = {name: total[f"{name}_seconds"] for name in ("draft", "verify", "host")}
    decode = sum(shares.values())
    if not decode:
        yield Remark("speed", "no answer yet; ask something, then look here again")
        return
    yield _speed(answers, total, decode)
    if not total["drafted"]:
        yield Remark("acceptance", "nothing was drafted in these answers")
    else:
        rate = total["accepted"] / total["drafted"]
        found = f"acceptance rate {rate:.2f}: {total['accepted']:.0f} of {total['drafted']:.0f} guesses"
        advice = "The drafter guesses this text badly; another draft model, or a lower temperature, may do better."
        bad = rate < _BAD_ACCEPTANCE and total["drafted"] >= _ENOUGH_DRAFTED
        yield Remark("acceptance", found, *((advice, "localspec suggest TARGET") if bad else ()))
    shares = {name: seconds / decode for name, seconds in shares.items()}
    advice = command = ""
    if shares["draft"] > _MUCH_DRAFTING:
        advice = "Drafting takes most of the time: the draft model is too large or too slow for this target."
        command = "localspec suggest TARGET"
    elif shares["host"] > _MUCH_HOST and total["host_seconds"] / max(1, total["passes"]) > 1e-3:
        advice = "Much goes into bookkeeping between passes; look at the kernels above."
    words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    yield Remark("time", f"{words} of decoding", advice, command)
    prefill = total["prefill_seconds"]
    if prefill / (prefill + decode) > _MUCH_PREFILL:
        yield Remark(
            "prompts",
            f"{prefill / (prefill + decode):.0%} of the time went into reading prompts ({prefill:.1f} s)",
            "Long prompts cost more than the answers; attach less, or start a new chat.",
        )


def _speed(answers: Sequence[Mapping[str, Any]], total: Mapping[str, float], decode: float) -> Remark:
    """Against plain decoding, as far as answers know its time; those in which nothing was drafted took it."""
    compared = [kept_comparison(one) for one in answers]
    plain, spent = (sum(column) for column in zip(*compared, strict=True))
    value = f"{total['generated_tokens'] / decode:.1f} tokens/s over {len(answers)} answers"
    if not spent:
        return Remark("speed", f"{value}; plain decoding's is not known")
    if not total["drafted"]:
        return Remark("speed", f"{value}; plain decoding, nothing was drafted")
    value += f", {plain / spent:.2f}x plain decoding (estimated from passes without drafts)"
    guarded, passes = total["guarded_passes"], total["passes"]
    if guarded > 0.1 * passes:
        value += f"; {guarded:.0f} of {passes:.0f} passes drafted only because settings say so"
        advice = "Let the plan choose: take out --max-draft-tokens and --drafter."
        return Remark("speed", value, advice, "--drafter auto")
    if plain / spent < _SLOWER_RATIO and total["generated_tokens"] >= _ENOUGH_TOKENS:
        advice = "Speculation does not pay for these answers; plain decoding is as fast."
        return Remark("speed", value, advice, "--drafter none")
    return Remark("speed", value)


def examine_use(engine: Engine, context_use: int = 0) -> Iterator[Remark]:
    """What the models in use leave on the table; the chat in front has `context_use` tokens."""
    loaded, settings = engine.loaded, engine.settings
    if settings.draft is None and not loaded.settings.heads and not loaded.heads:
        yield Remark(
            "who guesses",
            "only prompt lookup: there is no draft model",
            "A small model with the same tokenizer guesses any text.",
            f"localspec suggest {quote(str(loaded.model.path))}",
        )
    elif not loaded.trained:
        yield Remark(
            "who guesses",
            "the draft model or head was given back because memory was short",
            "Free memory and load the models again, or take a smaller draft.",
        )
    if not loaded.context.most_nodes:
        yield Remark("who guesses", "none: this architecture's cache cannot be trimmed")
    gpus = memory.used_gpus(memory.gpus())
    if gpus and settings.gpu_layers == 0:
        found = f"{gpus[0].name} ({gpus[0].description}) is idle: the target is on the CPU"
        yield Remark("GPU", found, "Put the target's layers on it.", "--gpu-layers -1")
    elif gpus and settings.draft is not None and settings.draft_gpu_layers == 0:
        found = "the target is on the GPU, its draft model on the CPU"
        yield Remark("GPU", found, "Put the draft model on it, too.", "--draft-gpu-layers -1")
    yield from examine_context(loaded.pass_seconds, context_use)


def examine_context(pass_seconds: Mapping[int, Mapping[int, float]], use: int) -> Iterator[Remark]:
    """Passes cost more the more the context holds; says so where a chat has become long enough to feel it.

    `pass_seconds` is {context length: {width: seconds of a pass}}, and `use` the tokens of the chat in front.
    """
    known = {length: costs[1] for length, costs in pass_seconds.items() if costs.get(1)}
    if len(known) < 2 or not use:
        return
    shortest, here = min(known), min(known, key=lambda length: abs(length - use))
    ratio = known[here] / known[shortest]
    if ratio > _LONG_CONTEXT:
        yield Remark(
            "context",
            f"this chat has {use} tokens; a pass takes {ratio:.1f} times as long as in a short one",
            "Start a new chat, or let the oldest turns go.",
        )
