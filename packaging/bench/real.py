"""Speed over plain decoding on a published model: five kinds of text, answer by answer.

    python packaging/bench/real.py TARGET.gguf [--tokens 96] [--answers 4] [--temperatures 0,0.8] [--drafters auto]
                                   [--habits PROMPTS.jsonl] [--after 0,50,200]

A fresh home: nothing is known of the machine or the model, and the first answers pay for learning. Each prompt is
answered plain and by each contender with the same seed, in turns whose order rotates. The prompt is read anew each
time, and no answer sees another one's text. Only decoding is timed. Each answer goes to --out as JSON. The table has
the ratio of seconds by cell, the lowest answers, and whether all texts were equal. Close other programs first.

With --habits the model first answers other prompts, JSON lines with `prompt`, into a corpus: half of them at
temperature 0, half at 0.8, 128 tokens each. After each number of answers that --after names, the prompts above are
answered plain, without that corpus, and with it ("+past"); they are not added to it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LETTER = (
    "Dear Ms Alvarez, thank you for the twelve boxes of apricots that came on Tuesday morning. Two of them were open, "
    "and one had lost its label on the way. We have put the fruit into the cold room at four degrees and will sell it "
    "before the weekend. Please send the next delivery to the side entrance in Mill Lane, since the yard is closed "
    "until the ninth."
)
PROGRAM = '''def total_price(items, tax):
    """Adds up the prices of all items and the tax."""
    total = 0.0
    for item in items:
        if item["count"] > 0:
            total += item["price"] * item["count"]
    return round(total * (1.0 + tax), 2)
'''
PAST = "+past"
"""At the end of a contender's name: it reads past answers."""
FILL_TOKENS = 128
RECORDS = "Anna Berg, 34, Oslo; Paul Lind, 51, Malmo; Rita Holm, 28, Turku; Ivan Petrov, 45, Riga; Mia Costa, 39, Porto"
CELLS: dict[str, tuple[str, ...]] = {
    "copy": (
        f"Repeat this letter word for word, with nothing before or after it:\n\n{LETTER}",
        f"Write down this program exactly as it is:\n\n{PROGRAM}",
        f"Copy this list without any change:\n\n{RECORDS}",
        f"Quote the following text in full:\n\n{LETTER[:260]}",
    ),
    "edit": (
        f"Rename the variable `total` to `amount` in this program and show the whole program:\n\n{PROGRAM}",
        f"Write this letter again, but it came on Friday and there were twenty boxes:\n\n{LETTER}",
        f"Add a parameter `discount` to this function and show it whole:\n\n{PROGRAM}",
        f"Show this list again, sorted by age:\n\n{RECORDS}",
    ),
    "json": (
        f"Write these people as a JSON list of objects with the fields name, age and city:\n\n{RECORDS}",
        "Write a JSON object that describes a bicycle: brand, model, wheels, gears, colour, price, accessories.",
        "Give me three books as JSON, each with title, author, year and pages.",
        f"Turn the letter into JSON with the fields sender, goods, count, problems, wish:\n\n{LETTER}",
    ),
    "maths": (
        "A train leaves at 9:40 and arrives at 13:05. It stops three times for 7 minutes. How long does it move?",
        "Maria has 48 stickers. She gives a third to Tom and half of the rest to Eva. How many are left? Explain it.",
        "A garden is 14 m long and 9 m wide. A path of 1 m goes around it inside. What is the area of the path?",
        "Compute 37 * 24 - 15 * 18 and explain how.",
    ),
    "open": (
        "Why is the sky blue in the day and red in the evening?",
        "Tell a short story about a lighthouse keeper who finds a letter.",
        "What should I think of before I adopt a dog?",
        "Explain what a hash table is to somebody who knows arrays.",
    ),
}


@dataclass(frozen=True)
class Heat:
    """One answer by one contender."""

    cell: str
    prompt: int
    temperature: float
    contender: str
    seconds: float
    """Of decoding."""
    tokens: int
    tokens_per_pass: float
    drafted: int
    accepted: int
    undrafted: dict[str, int]
    row_cost: float
    text: str


def heats(engine: Any, contenders: Sequence[str], options: argparse.Namespace) -> Iterator[Heat]:
    """All answers, in turns."""
    from localspec.chat.turn import Message
    from localspec.types import SamplingParams

    turn = 0
    for place in range(options.answers):
        for cell, prompts in CELLS.items():
            for temperature in options.temperatures:
                tokens = engine.chat_tokens([Message("user", prompts[place % len(prompts)])])
                order = [contenders[(turn + one) % len(contenders)] for one in range(len(contenders))]
                turn += 1
                for contender in order:
                    engine.forget()
                    answer = engine.generate(
                        tokens,
                        sampling=SamplingParams(temperature=temperature),
                        seed=1000 + place,
                        drafter="none" if contender == "plain" else contender.removesuffix(PAST),
                        max_tokens=options.tokens,
                        recall=contender.endswith(PAST),
                        remember=False,
                    )
                    text, stats = answer.text(), answer.stats
                    yield Heat(
                        cell,
                        place,
                        temperature,
                        contender,
                        stats.decode_seconds,
                        stats.generated,
                        stats.tokens_per_pass,
                        stats.drafted,
                        stats.accepted,
                        stats.as_dict()["undrafted_passes"],
                        stats.row_cost,
                        text,
                    )


def fill(engine: Any, prompts: Sequence[str], first: int) -> None:
    """Answers prompts into the corpus; `first` is the number of the first one."""
    from localspec.chat.turn import Message
    from localspec.types import SamplingParams

    for place, prompt in enumerate(prompts, first):
        sampling = SamplingParams(temperature=0.8 * (place % 2))
        turn = [Message("user", prompt[:1500])]
        engine.chat(turn, sampling=sampling, seed=5000 + place, max_tokens=FILL_TOKENS, recall=False).text()
        print(f"{place + 1} answers into the corpus\r", end="", flush=True)
    engine.loaded.corpus.settle()


def table(found: Sequence[Heat], contender: str) -> list[str]:
    """Lines of a contender: by cell and temperature the ratio to plain decoding, and the lowest answers."""
    plain = {(one.cell, one.prompt, one.temperature): one for one in found if one.contender == "plain"}
    own = [one for one in found if one.contender == contender]
    ratios = [_ratio(plain[one.cell, one.prompt, one.temperature], one) for one in own]
    lines = [f"{contender:14}" + "".join(f"{cell:>14}" for cell in CELLS)]
    for temperature in sorted({one.temperature for one in own}):
        cells = [
            [
                ratio
                for one, ratio in zip(own, ratios, strict=True)
                if (one.cell, one.temperature) == (cell, temperature)
            ]
            for cell in CELLS
        ]
        lines.append(f"{f'temperature {temperature}':14}" + "".join(f"{_mean(cell):14.2f}" for cell in cells))
    lowest = sorted(ratios)
    equal = sum(one.text == plain[one.cell, one.prompt, one.temperature].text for one in own)
    lines.append(
        f"lowest {', '.join(f'{ratio:.2f}' for ratio in lowest[:5])}; under 0.95: {sum(one < 0.95 for one in lowest)} "
        f"of {len(own)}; median {statistics.median(lowest):.2f}; texts equal: {equal} of {len(own)}"
    )
    return lines


def _ratio(plain: Heat, one: Heat) -> float:
    """Speed over plain decoding's, of texts that may differ in length where they are not exact."""
    return plain.seconds / plain.tokens / (one.seconds / one.tokens)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer at most (default 96)")
    parser.add_argument("--answers", type=int, default=4, help="prompts of each cell, at most 4 (default)")
    parser.add_argument("--temperatures", type=lambda text: [float(one) for one in text.split(",")], default=[0.0, 0.8])
    parser.add_argument("--drafters", type=lambda text: text.split(","), default=["auto"], help="default: auto")
    parser.add_argument("--habits", type=Path, help="JSON lines with `prompt`, none of which is one of the cells'")
    parser.add_argument("--after", type=lambda text: [int(one) for one in text.split(",")], default=[0, 50, 200])
    parser.add_argument("--out", type=Path, default=Path("build/real.json"))
    options = parser.parse_args()
    target = options.target.resolve()
    with tempfile.TemporaryDirectory(prefix="localspec-real-") as home:
        for variable in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
            os.environ[variable] = home
        from localspec.runtime.engine import Engine

        corpus = "on" if options.habits else "off"
        with Engine.load(target, options.draft, tuned=False, corpus=corpus) as engine:
            print(f"{target.name}: {engine.loaded.exactness}", flush=True)
            found = measured(engine, options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = {after: [asdict(one) for one in heats] for after, heats in found.items()}
    options.out.write_text(json.dumps(rows if options.habits else rows[0], indent=1) + "\n")


def measured(engine: Any, options: argparse.Namespace) -> dict[int, list[Heat]]:
    """By number of past answers; prints the tables."""
    contenders = ["plain", *options.drafters]
    prompts: list[str] = []
    if options.habits:
        prompts = [json.loads(line)["prompt"] for line in options.habits.read_text().splitlines()]
        contenders += [drafter + PAST for drafter in options.drafters]
    found, filled = dict[int, list[Heat]](), 0
    for after in options.after if options.habits else [0]:
        if after > filled:
            fill(engine, prompts[filled:after], filled)
        filled = max(filled, after)
        found[after] = []
        for one in heats(engine, contenders, options):
            found[after].append(one)
            print(f"{len(found[after])} answers            \r", end="", flush=True)
        if options.habits:
            print(f"after {after} answers to other prompts:")
        for contender in contenders[1:]:
            print("\n".join(table(found[after], contender)), flush=True)
    return found


if __name__ == "__main__":
    main()
