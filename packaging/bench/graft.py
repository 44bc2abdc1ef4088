"""What grafting brings: suffix decoding going on behind the draft model's guess, against the same engine without it.

    python packaging/bench/graft.py [--target FILE --draft FILE] [--tokens 64] [--rounds 2] [--prompts 8]

Both answer the shipped prompts, taking turns, and each has a plan of its own that goes on learning; texts must be the
same. `tokens/pass` is tokens over passes, `grafted` the share of passes whose draft had a graft, `right` the accepted
nodes of grafts over all tokens, `faster` the decode time without grafts over that with them, and rows over rows.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from localspec import Engine, Message, SamplingParams
from localspec.bench.contenders import Experience
from localspec.bench.workloads import Prompt, load_workloads
from localspec.drafters.suffix import SuffixDecoding
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest
from localspec.types import Tokens

CONTINUED = SuffixDecoding.continued


def nothing(drafter: SuffixDecoding, request: DraftRequest, path: Tokens, nodes: int) -> Draft:
    """No graft."""
    return EMPTY_DRAFT


class Side:
    """The engine with grafts or without."""

    def __init__(self, engine: Engine, grafts: bool) -> None:
        self.engine, self.grafts = engine, grafts
        self.experience = Experience.of(engine).apart()
        self.counts: dict[tuple[str, float], Counter[str]] = {}

    def converse(self, prompt: Prompt, temperature: float, tokens: int) -> str:
        """One conversation, from an empty cache; its text."""
        engine, counts = self.engine, self.counts.setdefault((prompt.workload, temperature), Counter())
        SuffixDecoding.continued = CONTINUED if self.grafts else nothing  # type: ignore[assignment, method-assign]
        self.experience.lend(engine)
        engine.configure(drafter="auto")
        for context in (engine.loaded.context, engine.loaded.draft_context):
            if context is not None:
                engine.on_engine_thread(lambda context=context: context.forget(0))  # type: ignore[misc]
        said, history = "", list[Message]()
        for messages in prompt.questions:
            history += messages
            ids = engine.chat_tokens(history) if history else engine.tokenize(prompt.text)
            sampling = SamplingParams(temperature=temperature)
            answer = engine.generate(
                ids, sampling=sampling, seed=1 + prompt.index, max_tokens=tokens, ignore_end=prompt.ignore_end
            )
            text = ""
            for event in answer:
                text += event.text
                if event.record is not None:
                    record = event.record
                    behind = [name != record.drafter for name in record.drafters]
                    counts["rows"] += record.width
                    counts["grafted"] += any(behind)
                    counts["right"] += sum(behind[node] for node in record.accepted if behind)
            counts["tokens"] += answer.stats.generated
            counts["passes"] += answer.stats.passes
            counts["microseconds"] += round(1e6 * answer.stats.decode_seconds)
            history.append(Message("assistant", text))
            said += text
        return said


def lines(without: Side, grafts: Side) -> Iterator[str]:
    """The table."""
    names = ("tokens/pass", "with grafts", "grafted", "right", "rows", "faster")
    yield f"{'workload':12} {'T':>4} " + " ".join(f"{name:>11}" for name in names)
    for (workload, temperature), old in without.counts.items():
        new = grafts.counts[workload, temperature]
        pace = f"{old['tokens'] / old['passes']:11.3f} {new['tokens'] / new['passes']:11.3f}"
        share = f"{new['grafted'] / new['passes']:11.1%} {new['right'] / new['tokens']:11.2%}"
        ratios = f"{new['rows'] / old['rows']:11.3f} {old['microseconds'] / new['microseconds']:11.3f}"
        yield f"{workload:12} {temperature:4g} {pace} {share} {ratios}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="default: the bundled pair")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--tokens", type=int, default=64, help="longest answer; default: 64")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8, help="of each workload at most; default: 8")
    parser.add_argument("--workloads", help="only these, by comma")
    parser.add_argument("--temperatures", default="0,0.7")
    options = parser.parse_args()
    workloads = load_workloads(options.workloads.split(",") if options.workloads else (), limit=options.prompts)
    with Engine.load(options.target, options.draft, tuned=False) as engine:
        sides = [Side(engine, False), Side(engine, True)]
        for turn in range(options.rounds):
            for temperature in map(float, options.temperatures.split(",")):
                for prompt in (one for several in workloads.values() for one in several):
                    order = sides if (turn + prompt.index) % 2 else sides[::-1]
                    texts = {side.converse(prompt, temperature, options.tokens) for side in order}
                    if len(texts) > 1:
                        raise SystemExit(f"grafts changed the text of {prompt.workload} {prompt.index}")
    print("\n".join(lines(*sides)))


if __name__ == "__main__":
    main()
