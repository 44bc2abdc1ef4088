"""A model that recites: its vocabulary is parts of words, so that texts can be read in a test."""

from __future__ import annotations

import numpy as np

from localspec.engine.interfaces import Draft, DraftRequest, Request
from localspec.engine.loop import Loop
from localspec.planning.plan import FixedPlan
from localspec.types import Float32Array, SamplingParams, Tokens
from tests.fakes import Answer, FakeDrafter, FakeTarget, FakeVocabulary, answer, prompt

PIECES = (b"", b"Hel", b"lo ", b"wor", b"ld", b"\xf0\x9f", b"\x98\x80", b"\xe2\x82", b"\xac", b"!")
END, HEL, LO, WOR, LD, SMILE1, SMILE2, EURO1, EURO2, BANG = range(10)
VOCABULARY = FakeVocabulary(10, end_tokens={END}, pieces=PIECES)
GREEDY = SamplingParams(temperature=0.0)


class Recital:
    """A model that says these tokens behind a prompt of one token, then the last one for ever."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, tokens: Tokens) -> Float32Array:
        row = np.zeros(10, dtype=np.float32)
        row[self.tokens[min(len(tokens), len(self.tokens)) - 1]] = 9.0
        return row


def all_of_it(*tokens: int) -> FakeDrafter:
    """Drafts the recital as far as it may."""
    known = [HEL, *tokens]

    def script(request: DraftRequest) -> Draft:
        start = len(request.history)
        return Draft.chain(known[start : start + request.max_nodes], origin="scripted")

    return FakeDrafter(script)


def recite(
    *tokens: int,
    drafting: bool = False,
    stop: tuple[str, ...] = (),
    max_tokens: int | None = 20,
    n_ctx: int = 64,
    ignore_end: bool = False,
) -> tuple[Answer, FakeTarget]:
    target = FakeTarget(Recital(*tokens), 10, n_ctx)
    request = Request(prompt(HEL), sampling=GREEDY, seed=1, max_tokens=max_tokens, stop=stop, ignore_end=ignore_end)
    plan = FixedPlan([all_of_it(*tokens)] if drafting else (), 8, None)
    return answer(Loop(target, plan, VOCABULARY), request), target
