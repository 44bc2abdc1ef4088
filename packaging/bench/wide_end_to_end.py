"""Tokens per second with localspec's own kernels off and on, plain and with a draft model, and whether texts agree.

    python packaging/bench/wide_end_to_end.py TARGET.gguf DRAFT.gguf [--draft-tokens 4,7] [--prompts 12] [--tokens 64]

Temperature 0, the same held-out prompts for all; plain and speculative runs take turns prompt by prompt, kernels off
and on round by round, so that a drifting machine hits all alike. TARGET and DRAFT: `localspec bench make-pair` makes a
1 B / 0.1 B pair of the bundled one. The engine's draft length is fixed. Speed is generated tokens over decode time
(drafting included, prefill not); with --rounds each prompt counts with its quickest run. Exit code 1 if a speculative
text differs from the plain one of the same setting although the engine called both exact. About 10 minutes on 2 cores
with the defaults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shipped import short_prompts

from localspec import Engine, SamplingParams
from localspec.engine.stats import RequestStats
from localspec.types import Tokens

GREEDY = SamplingParams(temperature=0.0)


class Mode(NamedTuple):
    """One column of the comparison."""

    wide: bool
    draft_tokens: int
    """0 = plain decoding."""

    def __str__(self) -> str:
        return f"wide {'on' if self.wide else 'off'}, {f'draft {self.draft_tokens}' if self.draft_tokens else 'plain'}"


@dataclass
class Tally:
    """All runs of a mode; per prompt the quickest."""

    best: dict[int, RequestStats] = field(default_factory=dict)
    texts: dict[int, list[int]] = field(default_factory=dict)
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    exact: bool = True

    def add(self, index: int, tokens: list[int], stats: RequestStats) -> None:
        if self.texts.setdefault(index, tokens) != tokens:
            raise SystemExit(f"prompt {index} was answered differently in another round")
        if stats.reused_tokens < stats.prompt_tokens // 4:  # not when another mode has just read the prompt
            self.prompt_tokens += stats.prompt_tokens - stats.reused_tokens
            self.prefill_seconds += stats.prefill_seconds
        self.exact = self.exact and stats.exact
        if index not in self.best or stats.decode_seconds < self.best[index].decode_seconds:
            self.best[index] = stats

    @property
    def speed(self) -> float:
        """Tokens a second of decode time."""
        return sum(s.generated for s in self.best.values()) / sum(s.decode_seconds for s in self.best.values())

    @property
    def acceptance_rate(self) -> float:
        drafted = sum(s.drafted for s in self.best.values())
        return sum(s.accepted for s in self.best.values()) / drafted if drafted else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return sum(s.generated for s in self.best.values()) / sum(s.passes for s in self.best.values())

    @property
    def pass_ms(self) -> float:
        """Of the target."""
        seconds = sum(s.verify_seconds for s in self.best.values())
        return 1e3 * seconds / sum(s.passes for s in self.best.values())

    @property
    def draft_ms(self) -> float:
        """Of a draft."""
        return 1e3 * sum(s.draft_seconds for s in self.best.values()) / sum(s.passes for s in self.best.values())


def answer(engine: Engine, prompt: Tokens, mode: Mode, count: int) -> tuple[list[int], RequestStats]:
    """One run."""
    engine.configure(drafter="draft" if mode.draft_tokens else "none", max_draft_tokens=mode.draft_tokens or 1)
    generation = engine.generate(prompt, sampling=GREEDY, max_tokens=count)
    tokens = [token for event in generation for token in event.tokens]
    return tokens, generation.stats


def load(options: argparse.Namespace, wide: bool) -> Engine:
    """The pair, with our kernels allowed or not."""
    return Engine.load(
        options.target,
        options.draft,
        drafter="draft",
        max_draft_tokens=max(lengths(options)),
        exact=options.exact,
        wide=wide,
        context=options.longest + options.tokens + 64,
        threads=options.threads,
    )


def lengths(options: argparse.Namespace) -> list[int]:
    """The draft lengths asked for."""
    return [int(text) for text in options.draft_tokens.split(",")]


def run(options: argparse.Namespace, tallies: dict[Mode, Tally], exactness: dict[bool, str]) -> None:
    """Fills the tallies; Ctrl-C leaves what there is.

    One engine at a time: with the OpenMP pools of two in the process both would be slower (`loading.load_apart`).
    """
    for length in (0, *lengths(options)):
        for wide in (False, True):
            tallies[Mode(wide, length)] = Tally()
    for turn in range(options.rounds):
        for wide in (False, True) if turn % 2 == 0 else (True, False):
            with load(options, wide) as engine:
                exactness[wide] = engine.loaded.exactness
                if turn == 0:
                    print(f"wide {'on' if wide else 'off'}: {exactness[wide]}", file=sys.stderr, flush=True)
                modes = [mode for mode in tallies if mode.wide == wide]
                prompts = short_prompts(engine, options.prompts, options.longest)
                answer(engine, prompts[0], modes[0], 4)
                for index, prompt in enumerate(prompts):
                    print(f"round {turn + 1}, prompt {index + 1} of {len(prompts)}", file=sys.stderr, flush=True)
                    first = (turn + index) % len(modes)
                    for mode in modes[first:] + modes[:first]:
                        tallies[mode].add(index, *answer(engine, prompt, mode, options.tokens))


def forks(tallies: dict[Mode, Tally]) -> dict[Mode, int]:
    """Prompts whose speculative text is not the plain one of the same setting."""
    found: dict[Mode, int] = defaultdict(int)
    for mode, tally in tallies.items():
        plain = tallies[Mode(mode.wide, 0)].texts
        found[mode] = sum(tokens != plain[index] for index, tokens in tally.texts.items() if index in plain)
    return found


def prefill_speed(tallies: dict[Mode, Tally], wide: bool) -> float:
    """Prompt tokens a second, over all modes of a setting."""
    mine = [tally for mode, tally in tallies.items() if mode.wide == wide]
    seconds = sum(tally.prefill_seconds for tally in mine)
    return sum(tally.prompt_tokens for tally in mine) / seconds if seconds else 0.0


def as_rows(tallies: dict[Mode, Tally]) -> list[dict[str, Any]]:
    """A row per mode, as plain data."""
    differing, base = forks(tallies), tallies[Mode(False, 0)].speed
    return [
        {
            "wide": mode.wide,
            "draft_tokens": mode.draft_tokens,
            "tokens_per_second": tally.speed,
            "to_plain": tally.speed / tallies[Mode(mode.wide, 0)].speed,
            "to_off": tally.speed / tallies[Mode(False, mode.draft_tokens)].speed,
            "to_off_plain": tally.speed / base,
            "acceptance_rate": tally.acceptance_rate,
            "tokens_per_pass": tally.tokens_per_pass,
            "pass_ms": tally.pass_ms,
            "draft_ms": tally.draft_ms,
            "exact": tally.exact,
            "prompts": len(tally.texts),
            "tokens": sum(map(len, tally.texts.values())),
            "forks": differing[mode],
        }
        for mode, tally in tallies.items()
    ]


def print_rows(tallies: dict[Mode, Tally], rows: list[dict[str, Any]]) -> None:
    """The table for people."""
    print(
        f"\n{'':20}{'tok/s':>8}{'/plain':>8}{'/off':>7}{'/off plain':>11}{'accepted':>9}{'tok/pass':>9}"
        f"{'pass ms':>9}{'draft ms':>9}{'exact':>6}{'forks':>8}"
    )
    for mode, row in zip(tallies, rows, strict=True):
        print(
            f"{mode!s:20}{row['tokens_per_second']:8.2f}{row['to_plain']:8.2f}{row['to_off']:7.2f}"
            f"{row['to_off_plain']:11.2f}{row['acceptance_rate']:9.2f}{row['tokens_per_pass']:9.2f}"
            f"{row['pass_ms']:9.1f}{row['draft_ms']:9.1f}"
            f"{'yes' if row['exact'] else 'no':>6}{row['forks']:4d}/{row['prompts']:<3d}"
        )


def main() -> int:
    """Pair in, table out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--draft-tokens", default="4,7", metavar="N,N", help="fixed draft lengths; default: 4,7")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--longest", type=int, default=256, metavar="N", help="most tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--exact", choices=["auto", "strict", "off"], default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tallies: dict[Mode, Tally] = {}
    exactness: dict[bool, str] = {}
    try:
        run(options, tallies, exactness)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    if not tallies or not all(tally.best for tally in tallies.values()):
        return 130
    rows = as_rows(tallies)
    broken = sum(row["forks"] for row in rows if row["exact"])
    prefill = {"off": prefill_speed(tallies, False), "on": prefill_speed(tallies, True)}
    if options.json:
        settings = {"off": exactness[False], "on": exactness[True]}
        result = {"settings": settings, "rows": rows, "forks_of_exact": broken, "prefill_tokens_per_second": prefill}
        print(json.dumps(result, indent=1))
        return 1 if broken else 0
    for wide, words in exactness.items():
        print(f"wide {'on' if wide else 'off'}: {words}")
    print_rows(tallies, rows)
    print(f"\nprefill: {prefill['off']:.0f} tokens/s with wide off, {prefill['on']:.0f} with it on")
    on, off = tallies[Mode(True, 0)].texts, tallies[Mode(False, 0)].texts
    same = sum(on[index] == off[index] for index in on if index in off)
    print(f"plain texts that agree between wide off and on (other kernels, other rounding): {same} of {len(on)}")
    print("speculative texts under exact settings: " + ("byte-equal" if not broken else f"{broken} differ"))
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
