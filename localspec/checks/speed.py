"""Why is it slow? Findings from the figures of answers and the models in use, in plain words with numbers.

Nothing is timed here: what answers took is in their stats, what passes cost is learned from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from localspec.checks.doctor import Finding
from localspec.engine.stats import kept_comparison
from localspec.models.memory import fit
from localspec.runtime import memory
from localspec.runtime.engine import Engine

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


def examine_answers(answers: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """What the last answers of one model say, by their stats as `RequestStats.as_dict` gives them."""
    answers = [one for one in answers if (one.get("generated_tokens") or 0) > 0]
    total = {name: sum(float(one.get(name) or 0) for one in answers) for name in _COUNTED}
    shares = {name: total[f"{name}_seconds"] for name in ("draft", "verify", "host")}
    decode = sum(shares.values())
    if not decode:
        yield Finding("speed", "no answer yet; ask something, then look here again")
        return
    yield _speed(answers, total, decode)
    if not total["drafted"]:
        yield Finding("acceptance", "nothing was drafted in these answers")
    else:
        rate = total["accepted"] / total["drafted"]
        found = f"acceptance rate {rate:.2f}: {total['accepted']:.0f} of {total['drafted']:.0f} guesses"
        advice = "The drafter guesses this text badly; another draft model, or a lower temperature, may do better."
        bad = rate < _BAD_ACCEPTANCE and total["drafted"] >= _ENOUGH_DRAFTED
        yield Finding("acceptance", found, *((advice, "localspec suggest TARGET") if bad else ()))
    shares = {name: seconds / decode for name, seconds in shares.items()}
    advice = command = ""
    if shares["draft"] > _MUCH_DRAFTING:
        advice = "Drafting takes most of the time: the draft model is too large or too slow for this target."
        command = "localspec suggest TARGET"
    elif shares["host"] > _MUCH_HOST and total["host_seconds"] / max(1, total["passes"]) > 1e-3:
        advice = "Much goes into bookkeeping between passes; look at the kernels above."
    words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    yield Finding("time", f"{words} of decoding", advice, command)
    prefill = total["prefill_seconds"]
    if prefill / (prefill + decode) > _MUCH_PREFILL:
        yield Finding(
            "prompts",
            f"{prefill / (prefill + decode):.0%} of the time went into reading prompts ({prefill:.1f} s)",
            "Long prompts cost more than the answers; attach less, or start a new chat.",
        )


def _speed(answers: Sequence[Mapping[str, Any]], total: Mapping[str, float], decode: float) -> Finding:
    """Against plain decoding, as far as answers know its time; those in which nothing was drafted took it."""
    compared = [kept_comparison(one) for one in answers]
    plain, spent = (sum(column) for column in zip(*compared, strict=True))
    value = f"{total['generated_tokens'] / decode:.1f} tokens/s over {len(answers)} answers"
    if not spent:
        return Finding("speed", f"{value}; plain decoding's is not known")
    if not total["drafted"]:
        return Finding("speed", f"{value}; plain decoding, nothing was drafted")
    value += f", {plain / spent:.2f}x plain decoding (estimated from passes without drafts)"
    guarded, passes = total["guarded_passes"], total["passes"]
    if guarded > 0.1 * passes:
        value += f"; {guarded:.0f} of {passes:.0f} passes drafted only because settings say so"
        advice = "Let the plan choose: take out --max-draft-tokens and --drafter."
        return Finding("speed", value, advice, "--drafter auto")
    if plain / spent < _SLOWER_RATIO and total["generated_tokens"] >= _ENOUGH_TOKENS:
        advice = "Speculation does not pay for these answers; plain decoding is as fast."
        return Finding("speed", value, advice, "--drafter none")
    return Finding("speed", value)


def examine_use(engine: Engine, context_use: int = 0) -> Iterator[Finding]:
    """What the models in use leave on the table: an idle GPU, no draft model, a long context, where the chat in front
    has `context_use` tokens.
    """
    loaded, settings = engine.loaded, engine.settings
    if settings.draft is None and not loaded.settings.heads and not loaded.heads:
        yield Finding(
            "who guesses",
            "only prompt lookup: there is no draft model",
            "A small model with the same tokenizer guesses any text.",
            f"localspec suggest {quote(str(loaded.model.path))}",
        )
    elif not loaded.trained:
        yield Finding(
            "who guesses",
            "the draft model or head was given back because memory was short",
            "Free memory and load the models again, or take a smaller draft.",
        )
    if not loaded.context.most_nodes:
        yield Finding("who guesses", "none: this architecture's cache cannot be trimmed")
    gpus = fit.used_gpus(memory.gpus())
    if gpus and settings.gpu_layers == 0:
        found = f"{gpus[0].name} ({gpus[0].description}) is idle: the target is on the CPU"
        yield Finding("GPU", found, "Put the target's layers on it.", "--gpu-layers -1")
    elif gpus and settings.draft is not None and settings.draft_gpu_layers == 0:
        found = "the target is on the GPU, its draft model on the CPU"
        yield Finding("GPU", found, "Put the draft model on it, too.", "--draft-gpu-layers -1")
    yield from examine_context(loaded.pass_seconds, context_use)


def examine_context(pass_seconds: Mapping[int, Mapping[int, float]], use: int) -> Iterator[Finding]:
    """Passes cost more the more the context holds; says so where a chat has become long enough to feel it.

    `pass_seconds` is {context length: {width: seconds of a pass}}, and `use` the tokens of the chat in front.
    """
    known = {length: costs[1] for length, costs in pass_seconds.items() if costs.get(1)}
    if len(known) < 2 or not use:
        return
    shortest, here = min(known), min(known, key=lambda length: abs(length - use))
    ratio = known[here] / known[shortest]
    if ratio > _LONG_CONTEXT:
        yield Finding(
            "context",
            f"this chat has {use} tokens; a pass takes {ratio:.1f} times as long as in a short one",
            "Start a new chat, or let the oldest turns go.",
        )
