"""Options that several commands share, and what they turn into: settings, a model's file or a server, an answer."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import check_text, read_text
from localspec.chat.turn import Message
from localspec.cli.output import load_progress
from localspec.cli.parser import add_engine_settings, add_setting, did_you_mean, reader
from localspec.config import PLANNED, RULES, EngineSettings
from localspec.errors import ModelError, UsageError
from localspec.gguf import read_header, read_parts
from localspec.methods import NAMES
from localspec.options import LIMITS, Options, SamplingParams
from localspec.paths import typed
from localspec.processes import announce
from localspec.runtime.memory import places as places
from localspec.runtime.memory import settle
from localspec.settings import numbers_of

if TYPE_CHECKING:
    from localspec.engine.stats import RequestStats
    from localspec.models.memory.fit import FitSettings
    from localspec.runtime.engine import Engine
    from localspec.runtime.generation import Generation


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which models, how they are loaded, and who drafts."""
    group = parser.add_argument_group("models")
    text = "installed pair or model, or GGUF file; default: the chosen one"
    group.add_argument("--target", metavar="NAME|FILE", help=text)
    group.add_argument(
        "--draft", metavar="NAME|FILE", help="a small model with the same tokenizer, or a head trained for the target"
    )
    text = "a head trained for the target (EAGLE, MTP, Medusa, ...); repeatable"
    group.add_argument("--head", action="append", dest="heads", metavar="NAME|PATH", help=text)
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
    group = parser.add_argument_group("speculation")
    text = f"who guesses: {', '.join(NAMES)}, an installed package's drafter, or package.module:Class; default: auto; "
    group.add_argument("--drafter", metavar="NAME", help=f"{text}any other drafts in every pass, paying or not")
    add_engine_settings(group, "max_draft_tokens", "draft_cap", "rollback", "branches")
    text = "keep answers on disk and search them when drafting (`localspec corpus`); default: in the terminal chat"
    group.add_argument("--corpus", action="store_const", const="on", help=text)
    text = "neither keep nor search past answers"
    group.add_argument("--no-corpus", dest="corpus", action="store_const", const="off", help=text)
    add_engine_settings(group, "corpus_mb", "min_ngram", "max_ngram")
    text = "how drafts are checked; only coupled (default) keeps the text of plain decoding"
    group.add_argument("--verify-rule", choices=["coupled", "rejection", "block"], help=text)
    add_engine_settings(group, "exact")
    group.add_argument("--speculative-config", metavar="JSON", help="the same with vLLM's keys")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for row in numbers_of(SamplingParams):
        add_setting(group, row)
    text = 'no repetition goes across; repeatable; `none` for none; default: \\n : " *'
    name = "dry_sequence_breakers"
    group.add_argument("--dry-sequence-breaker", dest=name, action="append", metavar="TEXT", help=text)
    group.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=X", help="add X to a token's logit; repeatable"
    )
    group.add_argument(
        "--seed", type=reader(LIMITS["seed"]), metavar="N", help="repeat an answer; default: random, shown by --stats"
    )
    group.add_argument("--max-tokens", type=reader(LIMITS["max_tokens"]), metavar="N", help="at most N new tokens")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the answer here; repeatable")


_VLLM_CUSTOM = "custom_class"
_VLLM_METHODS = {"ngram": "lookup", "draft_model": "draft", "suffix": "suffix", _VLLM_CUSTOM: _VLLM_CUSTOM}
_VLLM_KEYS = {
    "model": "draft",
    "num_speculative_tokens": "max_draft_tokens",
    "prompt_lookup_min": "min_ngram",
    "prompt_lookup_max": "max_ngram",
}
_VLLM_RULES = {"standard": "rejection", "block": "block"}


def vllm_settings(text: str) -> dict[str, Any]:
    """Settings from vLLM's `--speculative-config`; a custom class must be one of our drafters (`drafters.plugin`)."""
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
            settings["drafter"] = _translated(key, value, _VLLM_METHODS)
        elif key == "rejection_sample_method":
            settings["verify_rule"] = _translated(key, value, _VLLM_RULES)
        else:
            known = ", ".join([*_VLLM_KEYS, "method", "rejection_sample_method"])
            raise UsageError(f"--speculative-config: {key!r} is not supported.", f"Known keys: {known}.")
    if settings.get("drafter") == _VLLM_CUSTOM:
        path = settings.pop("draft", "")
        module, _, name = path.rpartition(".")
        if ":" not in path and not (module and name):
            raise UsageError(
                f"--speculative-config: model is {path!r}; with {_VLLM_CUSTOM} it is package.module.Class."
            )
        settings["drafter"] = path if ":" in path else f"{module}:{name}"
    if settings.get("drafter") == "lookup" and settings.get("min_ngram", 0) > settings.get("max_ngram", 5):
        settings["max_ngram"] = settings["min_ngram"]
    return settings


def _translated(key: str, value: Any, table: dict[str, str]) -> str:
    if not isinstance(value, str) or value not in table:
        raise UsageError(f"--speculative-config: {key} is {value!r}; supported: {', '.join(table)}.")
    return table[value]


def take_default(options: argparse.Namespace, faults: list[str] | None = None) -> None:
    """Names the chosen model where the line names none; why that cannot answer is printed, or added to `faults`."""
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
    if given:
        name_target(options, given, word)
    take_default(options)


def given_of(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """What was given of options by their parsed names; the rest is None, or no option of the command."""
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `Engine.load` from parsed options; an option beats the JSON."""
    settings = vllm_settings(options.speculative_config) if options.speculative_config else {}
    settings |= given_of(options, (field.name for field in fields(EngineSettings)))
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
    """Loads what the options name in this process, with progress; other programs are told of it until it is closed."""
    from localspec.runtime.engine import Engine

    settings = fitting(options, engine_settings(options) | more)
    with load_progress() as progress:
        engine = Engine.load(progress=progress, **settings)
    settle()
    loaded = engine.loaded.settings
    engine.at_close.callback(announce(options.command, loaded.target, loaded.draft, engine.loaded.context.n_ctx))
    return engine


def fitting(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Engine settings, with `--fit` those that fit memory."""
    return settings | fitted(settings) if options.fit else settings


def sampling_params(options: argparse.Namespace) -> SamplingParams:
    found = given_of(options, (field.name for field in fields(SamplingParams) if field.name != "logit_bias"))
    if "dry_sequence_breakers" in found:
        texts = [text.replace("\\n", "\n") for text in found["dry_sequence_breakers"]]
        found["dry_sequence_breakers"] = () if texts == ["none"] else tuple(texts)
    biases = list[tuple[int, float]]()
    for text in options.logit_bias:
        token, _, value = text.partition("=")
        try:
            biases.append((int(token), float(value)))
        except ValueError:
            raise UsageError(f"--logit-bias is {text!r}; it must look like 123=-1.5.") from None
    return SamplingParams(**found, logit_bias=tuple(biases))


def wanted_of(options: argparse.Namespace) -> Options:
    for name, text in [("--system", options.system), *(("--stop", text) for text in options.stop)]:
        check_text(text or "", name)
    return Options(
        sampling=sampling_params(options),
        seed=options.seed,
        max_tokens=options.max_tokens,
        stop=tuple(options.stop),
        top_log_probs=getattr(options, "log_probs", None),
    )


def add_process(parser: argparse._ActionsContainer) -> None:
    text = "each model in a process of its own, which may die without the program; default: yes (Windows: no)"
    parser.add_argument("--process", action=argparse.BooleanOptionalAction, default=os.name != "nt", help=text)


def names_model(word: str) -> bool:
    """Whether a word is the name of a model, installed or listed, or a GGUF file; else it may be a prompt."""
    from localspec.models.installed.installed import knows

    path = typed(word)
    is_file = os.path.isfile(path)
    if knows(word) or (word.endswith(".gguf") and (is_file or len(word.split()) == 1)):
        return True
    with suppress(OSError), open(path if is_file else os.devnull, "rb") as file:
        return file.read(4) == b"GGUF"
    return False


def check_openable(word: str, commands: Iterable[str] = ()) -> None:
    """Accepts an installed model or pair, a server's model of models.toml, or a GGUF file; nothing is fetched. For
    another word the UsageError's hint names what is like it.
    """
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find, knows, usable

    endpoints = Catalog.load().endpoints
    if word in endpoints:
        return
    names_file = word.endswith(".gguf") or "/" in word or os.path.isfile(typed(word))
    if not names_file and not knows(word):
        kinds = "command, model or file" if commands else "model, pair or file"
        hint = did_you_mean(word, [*commands, *usable(), *endpoints])
        raise UsageError(
            f"There is no {kinds} called {word!r}.",
            hint or "`localspec help` lists the commands, `localspec list` the models that are installed.",
        )
    target, _ = find(word)
    read_header(target)


def fitted(settings: dict[str, Any]) -> dict[str, Any]:
    """Context, cache type and GPU layers with which an engine of these settings fits memory; says so on standard error.
    If nothing fits, it is a ModelError.

    Where an F16 cache fits, its type stays what exactness makes of it (F16 is the largest of those); a Q8_0 cache is
    taken before a shorter context is, unless the settings name a type or kernels that know F16 only.
    """
    from localspec.drafters.heads.head import apart, may_predict, shapes
    from localspec.llama.exact.wide import CACHE_NAMES, DEFAULT_CACHE
    from localspec.models.installed.installed import find, find_one
    from localspec.models.memory.fit import FitSettings, choose
    from localspec.runtime.placement import alone

    target, draft = find(settings.get("target"))
    if settings.get("draft") is not None:
        draft = find_one(settings["draft"])
    wanted = {name: settings[name] for name in PLANNED if name in settings}
    cache = settings.get("cache", "auto")
    may_shrink = cache == "auto" and settings.get("kernels", "auto") != "wide"
    draft, heads = apart(draft, [find_one(head) for head in settings.get("heads", ())])
    parts, drafts = read_parts(target), None if draft is None else read_parts(draft)
    nextn = may_predict(settings.get("drafter", "auto"))
    form = CACHE_NAMES.get(cache, DEFAULT_CACHE)  # another word is refused later
    wanted |= {"type_k": form.type_k, "type_v": form.type_v, "flash_attention": form.flash_attention is not False}
    wished = FitSettings(**wanted, heads=shapes(parts[0], heads), nextn=nextn)
    cpu, *there = places(settings.get("rpc"))
    there = alone(there, settings.get("split_mode", "layer"), settings.get("main_gpu", 0))
    plan = choose(parts, drafts, wished, [cpu, *there], cache_types=("q8_0",) if may_shrink else ())
    if not plan.fits:
        raise ModelError(plan.sentence(), "Take a smaller quantisation, a shorter --context, or close other programs.")
    print(plan.sentence(), file=sys.stderr)
    found = {"context": plan.context, "gpu_layers": plan.gpu_layers, "draft_gpu_layers": plan.draft_gpu_layers}
    return found | ({"cache": "q8_0"} if may_shrink and plan.type_k == "q8_0" else {})


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    add_engine_settings(parser, "context", "slots")
    parser.add_argument("--cache-type", default="f16", metavar="TYPE", help="of keys and values: f16 (default), q8_0")
    add_engine_settings(parser, "gpu_layers", "device", "cpu_moe")


def fit_settings(options: argparse.Namespace) -> FitSettings:
    from localspec.models.memory.fit import FitSettings

    found = given_of(options, ("context", "slots", "gpu_layers", "cpu_moe"))
    return FitSettings(type_k=options.cache_type, type_v=options.cache_type, **found)


def start_answer(
    engine: Engine, options: argparse.Namespace, prompt: str | Sequence[Message], wanted: Options
) -> Generation:
    """Asks by the chat template, or raw; without a template text goes on, for a limited number of tokens."""
    from localspec.chat.prompt.prompt import MOST_TOKENS, continued

    if not isinstance(prompt, str):
        return engine.chat(prompt, wanted)
    if options.raw:
        return engine.generate(prompt, wanted)
    messages = [*([Message("system", options.system)] if options.system else []), Message("user", prompt)]
    if engine.template.exists:
        return engine.chat(messages, wanted)
    return engine.generate(continued(messages), wanted, max_tokens=wanted.max_tokens or MOST_TOKENS)


def say_of_model(target: Path, completes: bool, options: argparse.Namespace) -> None:
    """Says on standard error if a file leaves open how text is split, and if it has no chat template (unless raw)."""
    from localspec.chat.prompt.prompt import continued, note
    from localspec.models.facts.pairing import doubt_of

    if doubt := doubt_of(read_parts(target)[0]):
        print(f"localspec: {doubt}", file=sys.stderr)
    if not completes or getattr(options, "raw", False):
        return
    continued([Message("system", options.system)] if options.system else [])
    print(f"localspec: {plain_text(note(target.name))}", file=sys.stderr)


def add_endpoint_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--endpoint", metavar="URL", help="let an OpenAI-style server answer: vLLM, llama-server, ...")
    text = "a model of --endpoint, or a server's by its name in models.toml"
    parser.add_argument("--model", metavar="NAME", help=text)
    parser.add_argument("--api-key-file", metavar="FILE", help="with --endpoint: its key; default: OPENAI_API_KEY")
    parser.set_defaults(listed=None)


def name_target(options: argparse.Namespace, name: str, word: str = "NAME") -> None:
    if getattr(options, "endpoint", None):
        raise UsageError(f"{name!r} names a model of this machine.", "With --endpoint, name it with --model.")
    if options.target:
        raise UsageError(f"Give {word} or --target, not both.")
    options.target = name


def take_listed(options: argparse.Namespace) -> None:
    """Turns the name of a server's model in models.toml, given as target or `--model`, into `--endpoint` and `--model`.

    Given as target, another of the server's models may be named with `--model`.
    """
    name = options.target or options.model
    if options.endpoint or not name:
        return
    from localspec.models.installed.catalog import Catalog

    entry = Catalog.load().endpoints.get(name)
    if entry is None:
        return
    chosen = options.model if options.target else None
    options.listed, options.target = entry, None
    options.endpoint, options.model = entry.endpoint, chosen or entry.model or None


def check_endpoint_options(options: argparse.Namespace, *local: str) -> None:
    """Refuses what does not go with `--endpoint` (`local`: further ones by their parsed name), and what needs it."""
    if not options.endpoint:
        for name in ("model", "api_key_file"):
            if getattr(options, name) is not None:
                hint = "--target names a model of this machine." if name == "model" else ""
                raise UsageError(f"--{name.replace('_', '-')} needs --endpoint.", hint)
        return
    parser = argparse.ArgumentParser(add_help=False)
    add_model_options(parser)
    given = [
        action.option_strings[-1]
        for action in parser._actions
        if (value := getattr(options, action.dest)) != action.default and action.const in (None, value)
    ]
    named = [name for name in local if getattr(options, name) is not None and getattr(options, name) is not False]
    given += [f"--{name.replace('_', '-')}" for name in named]
    if given:
        other = "leave out --endpoint" if options.listed is None else f"name another model than {options.listed.name!r}"
        raise UsageError(f"{given[0]} needs a model of this machine.", f"Leave it out, or {other}.")


def key_of(options: argparse.Namespace) -> str | None:
    """The server's key; None = none is given. A server of models.toml gets the key that its entry names, or none."""
    if options.api_key_file:
        return read_text(options.api_key_file).strip()
    if options.listed is not None:
        from localspec.remote.server import key_for

        return key_for(options.listed)
    return os.environ.get("OPENAI_API_KEY")


def print_known(stats: RequestStats, seed: int | None, title: str) -> None:
    figures = known(stats)
    rate = f", {figures['tokens_per_second']:.1f} tokens/s" if "tokens_per_second" in figures else ""
    prompt = [f"prompt {figures['prompt_tokens']} tokens"] if "prompt_tokens" in figures else []
    first = [f"TTFT {figures['ttft_seconds'] * 1e3:.1f} ms"] if "ttft_seconds" in figures else []
    lines = [f"{figures.get('generated_tokens', 0)} tokens{rate}", ", ".join([*prompt, *first])]
    lines.append(", ".join([*([] if seed is None else [f"seed {seed}"]), title]))
    print(plain_text("\n".join(line for line in lines if line)), file=sys.stderr)


def known(stats: RequestStats) -> dict[str, Any]:
    """The figures of an answer that a server's client can know."""
    names = ("prompt_tokens", "generated_tokens", "ttft_seconds", "tokens_per_second")
    figures = stats.as_dict()
    return {name: figures[name] for name in names if figures.get(name)}
