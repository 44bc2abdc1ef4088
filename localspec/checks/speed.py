"""Why is it slow? Findings from the figures of answers and the models in use, in plain words with numbers.

Nothing is timed here: what answers took is in their stats, what passes cost is learned from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from localspec.checks.doctor import Finding
from localspec.engine.stats import kept_comparison
from localspec.models.memory import gpu
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


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums over the last answers; times in seconds."""

    answers: int
    tokens: int
    drafted: int
    accepted: int
    passes: int
    guarded: int
    draft: float
    verify: float
    host: float
    prefill: float
    plain: float
    """Of answers that know it; those in which nothing was drafted took it."""
    compared: float
    """Time of the passes whose plain time that is."""

    @classmethod
    def of(cls, answers: Sequence[Mapping[str, Any]]) -> Spent:
        """Adds up stats as `RequestStats.as_dict` gives them."""

        def total(name: str, among: Sequence[Mapping[str, Any]] = answers) -> float:
            return sum(float(one.get(name) or 0) for one in among)

        compared = [kept_comparison(one) for one in answers]
        return cls(
            len(answers),
            int(total("generated_tokens")),
            int(total("drafted")),
            int(total("accepted")),
            int(total("passes")),
            int(total("guarded_passes")),
            total("draft_seconds"),
            total("verify_seconds"),
            total("host_seconds"),
            total("prefill_seconds"),
            sum(plain for plain, _ in compared),
            sum(spent for _, spent in compared),
        )

    @property
    def decode(self) -> float:
        """Draft, verify and host together."""
        return self.draft + self.verify + self.host


def examine_answers(answers: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """What the last answers say.

    Args:
        answers: their stats as plain data; those of one model, the last ones.
    """
    spent = Spent.of([one for one in answers if (one.get("generated_tokens") or 0) > 0])
    if not spent.tokens or not spent.decode:
        yield Finding("speed", "no answer yet; ask something, then look here again")
        return
    yield _speed(spent)
    yield from _acceptance(spent)
    yield _time(spent)
    yield from _prefill(spent)


def _speed(spent: Spent) -> Finding:
    value = f"{spent.tokens / spent.decode:.1f} tokens/s over {spent.answers} answers"
    if spent.compared and not spent.drafted:
        return Finding("speed", f"{value}; plain decoding, nothing was drafted")
    if not spent.compared:
        return Finding("speed", f"{value}; plain decoding's is not known")
    speedup = spent.plain / spent.compared
    value += f", {speedup:.2f}x plain decoding (estimated from passes without drafts)"
    if spent.guarded and spent.guarded > 0.1 * spent.passes:
        value += f"; {spent.guarded} of {spent.passes} passes drafted only because settings say so"
        return Finding(
            "speed", value, "Let the plan choose: take out --max-draft-tokens and --drafter.", "--drafter auto"
        )
    slower = speedup < _SLOWER_RATIO and spent.tokens >= _ENOUGH_TOKENS
    return Finding(
        "speed",
        value,
        "Speculation does not pay for these answers; plain decoding is as fast." if slower else "",
        "--drafter none" if slower else "",
    )


def _acceptance(spent: Spent) -> Iterator[Finding]:
    if not spent.drafted:
        yield Finding("acceptance", "nothing was drafted in these answers")
        return
    rate = spent.accepted / spent.drafted
    bad = rate < _BAD_ACCEPTANCE and spent.drafted >= _ENOUGH_DRAFTED
    yield Finding(
        "acceptance",
        f"acceptance rate {rate:.2f}: {spent.accepted} of {spent.drafted} guesses",
        "The drafter guesses this text badly; another draft model, or a lower temperature, may do better."
        if bad
        else "",
        "localspec suggest TARGET" if bad else "",
    )


def _time(spent: Spent) -> Finding:
    shares = {name: getattr(spent, name) / spent.decode for name in ("draft", "verify", "host")}
    value = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    if shares["draft"] > _MUCH_DRAFTING:
        return Finding(
            "time",
            f"{value} of decoding",
            "Drafting takes most of the time: the draft model is too large or too slow for this target.",
            "localspec suggest TARGET",
        )
    if shares["host"] > _MUCH_HOST and spent.host / max(1, spent.passes) > 1e-3:
        return Finding(
            "time",
            f"{value} of decoding",
            "Much goes into bookkeeping between passes; look at the kernels above.",
        )
    return Finding("time", f"{value} of decoding")


def _prefill(spent: Spent) -> Iterator[Finding]:
    share = spent.prefill / (spent.prefill + spent.decode)
    if share > _MUCH_PREFILL:
        yield Finding(
            "prompts",
            f"{share:.0%} of the time went into reading prompts ({spent.prefill:.1f} s)",
            "Long prompts cost more than the answers; attach less, or start a new chat.",
        )


def examine_use(engine: Engine, context_use: int = 0) -> Iterator[Finding]:
    """What the models in use leave on the table: an idle GPU, no draft model, a long context.

    Args:
        engine: loaded.
        context_use: tokens of the chat in front.
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
    yield from _gpu(engine)
    yield from examine_context(loaded.pass_seconds, context_use)


def _gpu(engine: Engine) -> Iterator[Finding]:
    found = gpu.used(memory.gpus())
    if found and engine.settings.gpu_layers == 0:
        yield Finding(
            "GPU",
            f"{found[0].name} ({found[0].description}) is idle: the target is on the CPU",
            "Put the target's layers on it.",
            "--gpu-layers -1",
        )
    elif found and engine.settings.draft is not None and engine.settings.draft_gpu_layers == 0:
        yield Finding(
            "GPU",
            "the target is on the GPU, its draft model on the CPU",
            "Put the draft model on it, too.",
            "--draft-gpu-layers -1",
        )


def examine_context(pass_seconds: Mapping[int, Mapping[int, float]], use: int) -> Iterator[Finding]:
    """Passes cost more the more the context holds; says so where a chat has become long enough to feel it.

    Args:
        pass_seconds: {context length: {width: seconds of a pass}}, as far as known.
        use: tokens of the chat in front; 0 = unknown.
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
