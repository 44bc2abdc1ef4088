"""Options that several commands share, and what they turn into: engine settings and sampling settings."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import check_text
from localspec.cli.parser import add_engine_settings, add_setting, reader
from localspec.errors import UsageError
from localspec.settings import numbers_of

if TYPE_CHECKING:
    from localspec.options import Options
    from localspec.runtime.engine import Engine
    from localspec.types import SamplingParams


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which models, how they are loaded, and who drafts."""
    group = parser.add_argument_group("models")
    told = "installed pair or model, or GGUF file; default: the chosen one"
    group.add_argument("--target", metavar="NAME|FILE", help=told)
    group.add_argument(
        "--draft", metavar="NAME|FILE", help="a small model with the same tokenizer, or a head trained for the target"
    )
    told = "a head trained for the target (EAGLE, MTP, Medusa, ...); repeatable"
    group.add_argument("--head", action="append", dest="heads", metavar="NAME|PATH", help=told)
    add_engine_settings(group, "cross_tokenizer", "context")
    group.add_argument(
        "--fit", action="store_true", help="choose context and GPU layers that fit memory, draft included"
    )
    add_engine_settings(group, "threads", "wide", "kernels", "cache")
    group.add_argument(
        "--no-tune", dest="tuned", action="store_false", help="leave aside what `localspec tune` stored for the pair"
    )
    add_engine_settings(group, "gpu_layers", "device", "rpc", "split_mode", "main_gpu", "override_tensor", "cpu_moe")
    add_engine_settings(group, "draft_gpu_layers", "draft_device")
    _add_speculation_options(parser)


def _add_speculation_options(parser: argparse.ArgumentParser) -> None:
    from localspec.methods import NAMES

    group = parser.add_argument_group("speculation")
    told = f"who guesses: {', '.join(NAMES)}, an installed package's drafter, or package.module:Class; default: auto; "
    group.add_argument("--drafter", metavar="NAME", help=f"{told}any other drafts in every pass, paying or not")
    add_engine_settings(group, "max_draft_tokens", "draft_cap", "rollback", "branches")
    told = "keep answers on disk and search them when drafting (`localspec corpus`); default: in the terminal chat"
    group.add_argument("--corpus", action="store_const", const="on", help=told)
    told = "neither keep nor search past answers"
    group.add_argument("--no-corpus", dest="corpus", action="store_const", const="off", help=told)
    add_engine_settings(group, "corpus_mb", "min_ngram", "max_ngram")
    told = "how drafts are checked; only coupled (default) keeps the text of plain decoding"
    group.add_argument("--verify-rule", choices=["coupled", "rejection", "block"], help=told)
    add_engine_settings(group, "exact")
    group.add_argument("--speculative-config", metavar="JSON", help="the same with vLLM's keys")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How tokens are drawn; defaults are llama.cpp's."""
    from localspec.options import LIMITS, SamplingParams

    group = parser.add_argument_group("sampling")
    for row in numbers_of(SamplingParams):
        add_setting(group, row)
    told = 'no repetition goes across; repeatable; `none` for none; default: \\n : " *'
    name = "dry_sequence_breakers"
    group.add_argument("--dry-sequence-breaker", dest=name, action="append", metavar="TEXT", help=told)
    group.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=X", help="add X to a token's logit; repeatable"
    )
    group.add_argument(
        "--seed", type=reader(LIMITS["seed"]), metavar="N", help="repeat an answer; default: random, shown by --stats"
    )
    group.add_argument("--max-tokens", type=reader(LIMITS["max_tokens"]), metavar="N", help="at most N new tokens")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the answer here; repeatable")


_VLLM_METHODS = {"ngram": "lookup", "draft_model": "draft", "suffix": "suffix"}
_VLLM_CUSTOM = "custom_class"
_VLLM_KEYS = {
    "model": "draft",
    "num_speculative_tokens": "max_draft_tokens",
    "prompt_lookup_min": "min_ngram",
    "prompt_lookup_max": "max_ngram",
}
_VLLM_RULES = {"standard": "rejection", "block": "block"}


def vllm_settings(text: str) -> dict[str, Any]:
    """Settings from vLLM's `--speculative-config` JSON. With custom_class the model is package.module.Class, which must
    be a drafter of ours (`localspec.drafters.plugin`).
    """
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--speculative-config is not JSON: {error}.") from None
    if not isinstance(given, dict):
        raise UsageError(f"--speculative-config is {text}; it must be a JSON object.")
    settings: dict[str, Any] = {}
    for key, value in given.items():
        if key in _VLLM_KEYS:
            expected = str if key == "model" else int
            if type(value) is not expected:
                raise UsageError(f"--speculative-config: {key} is {value!r}; it must be a {expected.__name__}.")
            settings[_VLLM_KEYS[key]] = value
        elif key == "method":
            settings["drafter"] = value if value == _VLLM_CUSTOM else _translated(key, value, _VLLM_METHODS)
        elif key == "rejection_sample_method":
            settings["verify_rule"] = _translated(key, value, _VLLM_RULES)
        else:
            known = ", ".join([*_VLLM_KEYS, "method", "rejection_sample_method"])
            raise UsageError(f"--speculative-config: {key!r} is not supported.", f"Known keys: {known}.")
    if settings.get("drafter") == _VLLM_CUSTOM:
        settings["drafter"] = _custom_class(settings.pop("draft", ""))
    if settings.get("drafter") == "lookup" and settings.get("min_ngram", 0) > settings.get("max_ngram", 5):
        settings["max_ngram"] = settings["min_ngram"]
    return settings


def _translated(key: str, value: Any, table: dict[str, str]) -> str:
    if not isinstance(value, str) or value not in table:
        known = ", ".join([*table, _VLLM_CUSTOM] if key == "method" else table)
        raise UsageError(f"--speculative-config: {key} is {value!r}; supported: {known}.")
    return table[value]


def _custom_class(path: str) -> str:
    """`package.module:Class` of a dotted path, or of one with a colon."""
    module, dot, name = path.rpartition(".")
    if ":" in path:
        return path
    if not (dot and module and name):
        raise UsageError(f"--speculative-config: model is {path!r}; with {_VLLM_CUSTOM} it is package.module.Class.")
    return f"{module}:{name}"


def take_default(options: argparse.Namespace, faults: list[str] | None = None) -> None:
    """Names the model that answers where the command line names none, and says so, or adds to `faults`, if the chosen
    one cannot.
    """
    if options.target or getattr(options, "endpoint", None):
        return
    from localspec.models.installed import installed

    found = installed.default()
    if found.fault and faults is not None:
        faults.append(found.fault)
    elif found.fault:
        print(plain_text(f"localspec: {found.fault}"), file=sys.stderr)
    options.target, options.draft = found.target, options.draft or found.draft


def take_target(options: argparse.Namespace, given: str | None, word: str) -> None:
    """Turns a word of the command line into the target; `word` is what the help calls it. Else `take_default`."""
    if given and options.target:
        raise UsageError(f"Give {word} or --target, not both.")
    options.target = given or options.target
    take_default(options)


def engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `Engine.load` from parsed options; an option beats the JSON."""
    from localspec.config import RULES, EngineSettings

    settings = vllm_settings(options.speculative_config) if options.speculative_config else {}
    names = {field.name for field in fields(EngineSettings)} & set(vars(options))
    settings |= {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if "verify_rule" in settings:
        settings["verify_rule"] = RULES[settings["verify_rule"]]
    if not options.tuned:
        settings["tuned"] = False
    return settings


def check_comparison(options: argparse.Namespace) -> None:
    """Refuses what would let a later side of a comparison find the answers of an earlier one."""
    if options.corpus == "on":
        why = "its later answers would be found in its earlier ones."
        raise UsageError(f"--corpus does not go with a comparison: {why}", "Leave it out.")


def load_engine(options: argparse.Namespace, **more: Any) -> Engine:
    """Loads what the options name in this process, with progress on a terminal's standard error; other programs are
    told of it until it is closed.
    """
    from localspec.cli.output import load_progress
    from localspec.processes import announce
    from localspec.runtime import memory
    from localspec.runtime.engine import Engine

    settings = fitting(options, engine_settings(options) | more)
    with load_progress() as progress:
        engine = Engine.load(progress=progress, **settings)
    memory.settle()
    loaded = engine.loaded.settings
    engine.at_close(announce(options.command, loaded.target, loaded.draft, engine.loaded.context.n_ctx))
    return engine


def fitting(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Engine settings, with `--fit` those that fit memory."""
    from localspec.cli.places import fitted

    return settings | fitted(settings) if options.fit else settings


def sampling_params(options: argparse.Namespace) -> SamplingParams:
    from localspec.types import SamplingParams

    names = {field.name for field in fields(SamplingParams)} - {"logit_bias"}
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if "dry_sequence_breakers" in given:
        texts = [text.replace("\\n", "\n") for text in given["dry_sequence_breakers"]]
        given["dry_sequence_breakers"] = () if texts == ["none"] else tuple(texts)
    return SamplingParams(**given, logit_bias=tuple(_bias(text) for text in options.logit_bias))


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise UsageError(f"--logit-bias is {text!r}; it must look like 123=-1.5.") from None


def wanted_of(options: argparse.Namespace) -> Options:
    for name, text in [("--system", options.system), *(("--stop", text) for text in options.stop)]:
        check_text(text or "", name)
    from localspec.options import Options

    return Options(
        sampling=sampling_params(options),
        seed=options.seed,
        max_tokens=options.max_tokens,
        stop=tuple(options.stop),
        top_log_probs=getattr(options, "log_probs", None),
    )


def add_process(parser: argparse._ActionsContainer) -> None:
    told = "each model in a process of its own, which may die without the program; default: yes (Windows: no)"
    parser.add_argument("--process", action=argparse.BooleanOptionalAction, default=os.name != "nt", help=told)
