"""Answers of a target, and its states, for `train.py`: `python answers.py TARGET CORPUS OUT --answers 640`.

CORPUS holds gsm8k_train.jsonl ({"question"} a line) and codegen-instruct.json ([{"instruction", "input"}]). The last 20
of each are held out. OUT gets learn.npz, maths.npz and code.npz, and maths-warm.npz and code-warm.npz: the held-out
ones at temperature 0.8. Per answer k they have the arrays `k.tokens` int32[n], `k.prompt` (tokens of the prompt),
`k.after4`, `k.after6` and `k.final` float16[n, hidden]: the inputs of layers 4 and 6, and the states after the final
norm.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import threading
import time
from pathlib import Path

import numpy as np

from localspec import Engine
from localspec.chat.turn import Message
from localspec.types import SamplingParams

HELD_OUT = 20
"""Prompts of each kind that no drafter is trained on."""
MOST_TOKENS = 160
"""Of an answer."""
LAYERS = (4, 6)
SLOTS = 8
TEMPERATURES = {"learn": (0.0, 0.7, 1.0), "maths": (0.0,), "code": (0.0,), "maths-warm": (0.8,), "code-warm": (0.8,)}
"""Of the answers in each file, in turn."""


def prompts(corpus: Path) -> dict[str, list[str]]:
    """The prompts of each file."""
    maths = [json.loads(line)["question"] for line in (corpus / "gsm8k_train.jsonl").open(encoding="utf-8")]
    rows = json.loads((corpus / "codegen-instruct.json").read_text(encoding="utf-8"))
    code = [text for row in rows if len(text := f"{row['instruction']}\n{row['input']}".strip()) < 600]
    pairs = zip(maths[:-HELD_OUT], code[:-HELD_OUT], strict=False)
    learn = [prompt for pair in pairs for prompt in pair]
    random.Random(7).shuffle(learn)
    held_out = {"maths": maths[-HELD_OUT:], "code": code[-HELD_OUT:]}
    return {**held_out, **{f"{name}-warm": texts for name, texts in held_out.items()}, "learn": learn}


def answered(engine: Engine, texts: list[str], temperatures: tuple[float, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(prompt, answer) in tokens of each text, `SLOTS` at a time."""
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    waiting: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for item in enumerate(texts):
        waiting.put(item)

    def work() -> None:
        while True:
            try:
                number, text = waiting.get_nowait()
            except queue.Empty:
                return
            prompt = engine.chat_tokens([Message("user", text)])
            sampling = SamplingParams(
                temperature=temperatures[number % len(temperatures)], top_k=0, top_p=1.0, min_p=0.0
            )
            answer = engine.generate(prompt, sampling=sampling, seed=number, max_tokens=MOST_TOKENS)
            answer.text()
            found[number] = (np.asarray(prompt), np.asarray(answer.tokens, dtype=np.int32))

    workers = [threading.Thread(target=work) for _ in range(SLOTS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [found[number] for number in sorted(found)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--answers", type=int, default=640)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with Engine.load(options.target, slots=SLOTS, context=1024, drafter="none") as engine:
        for name, texts in prompts(options.corpus).items():
            said = answered(engine, texts[: options.answers] if name == "learn" else texts, TEMPERATURES[name])
            print(name, sum(len(answer) for _, answer in said), "tokens", f"{time.perf_counter() - began:.0f} s")
            kept: dict[str, np.ndarray] = {}
            for k, (prompt, answer) in enumerate(said):
                tokens = np.concatenate([prompt, answer]).astype(np.int32)
                states = engine.hidden_states(tokens, LAYERS)
                kept |= {f"{k}.after{layer}": states.layers[layer].astype(np.float16) for layer in LAYERS}
                kept |= {f"{k}.tokens": tokens, f"{k}.prompt": np.array(len(prompt))}
                kept[f"{k}.final"] = states.final.astype(np.float16)
            np.savez(options.out / f"{name}.npz", **kept)
            print(name, "read", f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
