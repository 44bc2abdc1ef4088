"""Stand-ins for models: a target, a draft model's context, a vocabulary and a scripted drafter, all in memory.

`FakeTarget` is strict: it fails the test when the engine breaks a rule of `engine.interfaces.Target` (a pass of a
width that is not exact, a prompt that was not prefilled, a tree where several slots share the pass), and it turns the
rows of a pass into NaN once the next pass begins, because that is how long llama.cpp keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from localspec.engine.interfaces import NEEDS_NOTHING, Draft, DraftRequest, History, Outcome, Request
from localspec.engine.loop import Loop
from localspec.engine.slot import Event, FinishReason, Origin, TokenLogProb
from localspec.engine.stats import RequestStats
from localspec.errors import Cancelled
from localspec.types import Feed, Float32Array, LogitRows, Noise, Rule, SamplingParams, Tokens

LogitsOf: TypeAlias = Callable[[Tokens], Float32Array]
Script: TypeAlias = Callable[[DraftRequest], Draft]


def draft_request(
    slot: int,
    history: History,
    max_nodes: int,
    max_depth: int,
    sampling: SamplingParams,
    noise: Noise,
    needs_probs: bool = False,
    **more: Any,
) -> DraftRequest:
    """A request for a draft; `more` are fields of it, or options of the answer that it is for."""
    own = {name: more.pop(name) for name in ("price", "room", "constraint", "chain") if name in more}
    prompt = history.tokens if len(history) else np.zeros(1, dtype=np.int32)
    rule = Rule.REJECTION if needs_probs else Rule.COUPLED
    asked = Request(prompt, sampling=sampling, seed=noise.seed, rule=rule, **more)
    return DraftRequest(slot, history, max_nodes, max_depth, asked, noise, **own)


class HashModel:
    """A language model in a table: the row depends on a hash of the last `order` tokens."""

    ROWS = 509

    def __init__(self, n_vocab: int, order: int = 2, seed: int = 0, sharpness: float = 2.0) -> None:
        self.n_vocab, self.order = n_vocab, order
        table = np.random.default_rng(seed).standard_normal((self.ROWS, n_vocab)) * sharpness
        self.table: Float32Array = table.astype(np.float32)

    def __call__(self, tokens: Tokens) -> Float32Array:
        code = 0
        for token in tokens[-self.order :].tolist():
            code = (code * 1_000_003 + token + 1) % 2_147_483_647
        row: Float32Array = self.table[code % self.ROWS]
        return row

    def like(self, error: float, seed: int = 1) -> HashModel:
        """A draft model for this one: the same rows with an error of this size on every logit."""
        other = HashModel(self.n_vocab, self.order, seed, error)
        other.table = other.table + self.table
        return other


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two lists share."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def main_chain(parents: Sequence[int]) -> list[int]:
    """First child of the last history token, its first child, and so on."""
    chain: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (chain[-1] if chain else -1):
            chain.append(node)
    return chain


def paths(draft_parents: Sequence[int]) -> list[list[int]]:
    """For each node, the nodes from the root down to it, itself included."""
    found: list[list[int]] = []
    for node, parent in enumerate(draft_parents):
        assert -1 <= parent < node, f"node {node} has parent {parent}"
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


class FakeTarget:
    """A `Target` over any function from tokens to logits."""

    grid = 8
    any_cut = False

    def __init__(
        self,
        logits: LogitsOf,
        n_vocab: int,
        n_ctx: int = 256,
        exact_widths: Iterable[int] | None = None,
        streams: bool = False,
        same_bits: Iterable[int] | None = None,
    ) -> None:
        """
        Args:
            exact_widths: what it says of itself, and the only widths it then puts up with.
            streams: every slot has a cache of its own, as with several slots in llama.cpp: chains only.
            same_bits: widths whose rows equal those of one row; others differ. None = all are equal.
        """
        self.logits, self.n_vocab, self.n_ctx = logits, n_vocab, n_ctx
        self.exact_widths = None if exact_widths is None else frozenset(exact_widths)
        self.streams = streams
        self.same_bits = None if same_bits is None else frozenset(same_bits)
        self.cached: dict[int, list[int]] = {}
        self.prefilled: list[tuple[int, int]] = []
        """(slot, tokens) of every chunk."""
        self.log: list[str] = []
        """"chunk" or "pass", in order."""
        self.passes: list[dict[int, int]] = []
        """Rows per slot of every decode."""
        self.widths: list[int] = []
        """Widths of all passes that ran."""
        self.before_decode: Callable[[], None] = lambda: None
        """Called first in every decode; a test may raise here."""
        self._drafted: dict[int, int] = {}
        self._matrices: list[Float32Array] = []

    def copy_prefix(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        return self.reusable(slot, tokens, prompt_length)

    def prefill_chunk(
        self,
        slot: int,
        tokens: Tokens,
        prompt_length: int,
        cancel: Callable[[], bool] | None = None,
        most: int | None = None,
    ) -> int:
        assert 1 <= prompt_length <= len(tokens) <= self.n_ctx
        self._spoil()
        start, total = self.reusable(slot, tokens, prompt_length), len(tokens) - 1
        assert start < total, "there is nothing to prefill"
        if cancel is not None and cancel():
            raise Cancelled("Stopped while reading the prompt.")
        end = min((start // self.grid + 1) * self.grid if most is None else start + min(most, self.grid), total)
        self.cached[slot] = tokens[:end].tolist()
        self.prefilled.append((slot, end - start))
        self.log.append("chunk")
        self._drafted[slot] = 0
        return end

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        self.before_decode()
        self._spoil()
        rows = {feed.slot: self.pending(feed.slot, feed.tokens) + len(feed.draft_tokens) for feed in feeds}
        assert len(rows) == len(feeds) >= 1, "a slot is fed twice, or none is"
        widths = self.pass_widths(rows)
        if self.exact_widths is not None:
            assert set(widths) <= self.exact_widths, f"a pass of width {widths}; exact are {set(self.exact_widths)}"
        self.passes.append(rows)
        self.log.append("pass")
        self.widths += widths
        alike = self.same_bits is None or set(widths) <= self.same_bits
        return [self._rows(feed, 0.0 if alike else 1.0 + max(widths)) for feed in feeds]

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        return min(common_prefix(self.cached.get(slot, []), tokens.tolist()), len(tokens) - 1)

    def held(self, slot: int) -> tuple[Tokens, int]:
        tokens = np.array(self.cached.get(slot, []), dtype=np.int32)
        return tokens, len(tokens)

    def pending(self, slot: int, tokens: Tokens) -> int:
        return len(tokens) - self.reusable(slot, tokens, len(tokens))

    def longest_draft(self, length: int) -> int:
        return 64

    def pass_widths(self, rows: Mapping[int, int]) -> list[int]:
        if not self.streams:
            return [sum(rows.values())]
        left, widths = dict(rows), []
        while left:  # equal parts of consecutive slots
            first = min(left)
            run = [slot for slot in sorted(left) if all(between in left for between in range(first, slot))]
            part = min(left[slot] for slot in run)
            widths.append(part * len(run))
            left = {slot: count - part * (slot in run) for slot, count in left.items()}
            left = {slot: count for slot, count in left.items() if count}
        return widths

    def forget(self, slot: int, keep: int = 0) -> None:
        self.cached[slot] = self.cached.get(slot, [])[:keep]

    def _rows(self, feed: Feed, shift: float) -> LogitRows:
        tokens, parents, slot = feed.draft_tokens, feed.draft_parents.tolist(), feed.slot
        assert tokens.dtype == feed.draft_parents.dtype == feed.tokens.dtype == np.int32
        assert len(parents) == len(tokens)
        nodes = paths(parents)
        chain = main_chain(parents)
        assert not self.streams or len(chain) == len(tokens), "a tree where slots have caches of their own"
        assert len(set(zip(parents, tokens.tolist(), strict=True))) == len(tokens), "two siblings are the same token"
        assert len(feed.tokens) + max(map(len, nodes), default=0) <= self.n_ctx
        assert 1 <= feed.prompt_length <= len(feed.tokens)
        assert self.pending(slot, feed.tokens) <= 1 + self._drafted.get(slot, 0), "a prompt that was not prefilled"
        matrix = np.stack([self.logits(np.concatenate([feed.tokens, tokens[path]])) for path in [[], *nodes]])
        if shift:
            matrix = matrix + np.random.default_rng(int(shift)).standard_normal(matrix.shape, dtype=np.float32)
        self._matrices.append(matrix)
        self.cached[slot] = [*feed.tokens.tolist(), *tokens[chain].tolist()]
        self._drafted[slot] = len(tokens)
        return LogitRows.from_matrix(matrix)

    def _spoil(self) -> None:
        for matrix in self._matrices:
            matrix.fill(np.nan)
        self._matrices.clear()


class FakeDraftContext:
    """A `DraftContext` over any function from tokens to logits; `passes` counts the rows it had to compute."""

    CHUNK, n_paths = 512, 1

    def __init__(self, logits: LogitsOf, n_ctx: int = 256) -> None:
        self.logits, self.n_ctx = logits, n_ctx
        self.n_vocab = len(logits(np.zeros(1, dtype=np.int32)))
        self.cached: dict[int, list[int]] = {}
        self.passes: list[dict[int, int]] = []
        self._matrices: list[Float32Array] = []

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        for matrix in self._matrices:
            matrix.fill(np.nan)
        self._matrices.clear()
        assert len({feed.slot for feed in feeds}) == len(feeds) >= 1
        rows = {}
        for feed in feeds:
            tokens = feed.tokens.tolist()
            assert 1 <= len(tokens) <= self.n_ctx
            assert len(feed.draft_tokens) == 0
            rows[feed.slot] = len(tokens) - min(common_prefix(self.cached.get(feed.slot, []), tokens), len(tokens) - 1)
            self.cached[feed.slot] = tokens
            self._matrices.append(self.logits(feed.tokens)[None, :].copy())
        self.passes.append(rows)
        return [LogitRows.from_matrix(matrix) for matrix in self._matrices]

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        start = self.reusable(slot, tokens, prompt_length)
        end = min(start + self.CHUNK, len(tokens) - 1)
        self.cached[slot] = tokens[:end].tolist()
        self.passes.append({slot: end - start})
        return end

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        return min(common_prefix(self.cached.get(slot, []), tokens.tolist()), len(tokens) - 1)


class FakeVocabulary:
    """Pieces that are letters, parts of UTF-8 characters, several characters, and nothing (control tokens)."""

    PIECES = (b"a", b"b", b"\xe2", b"\x82\xac", b"c", b"\xf0\x9f", b"\x98", b"\x80", b" ", b"", b"ab", b"\xc3", b"\xa9")

    def __init__(self, n_vocab: int, end_tokens: Iterable[int] = (), pieces: Sequence[bytes] = PIECES) -> None:
        self.end_tokens = frozenset(end_tokens)
        self._pieces = [pieces[token % len(pieces)] for token in range(n_vocab)]

    def piece(self, token: int, special: bool = False) -> bytes:
        return b"" if token in self.end_tokens else self._pieces[token]

    def text(self, tokens: Iterable[int]) -> str:
        """What all these tokens say."""
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")


class FakeDrafter:
    """Drafts what a script says, and keeps what it is told."""

    name = "scripted"
    needs = NEEDS_NOTHING

    def __init__(self, script: Script, free: bool = True) -> None:
        self._script = script
        self.free = free
        self.requests: list[DraftRequest] = []
        self.outcomes: list[Outcome] = []

    def missing(self, slot: int, history: History) -> int:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.requests += requests
        return [self._script(request) for request in requests]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            rows = outcome.rows
            assert len(rows) == 1 + len(outcome.draft)
            assert all(np.isfinite(rows[i]).any() for i in range(len(rows))), "rows of an earlier pass"
        self.outcomes += outcomes

    def close(self) -> None:
        pass


def parrot(known: Sequence[int], right: float, rng: np.random.Generator, n_vocab: int, fork: float = 0.0) -> Script:
    """Drafts what comes next in `known`, each token right with probability `right`, else random.

    With `fork` above 0 each node is attached to a random earlier one with that probability: a tree.
    """

    def script(request: DraftRequest) -> Draft:
        base, tokens, parents = len(request.history), list[int](), list[int]()
        for _ in range(int(rng.integers(0, request.max_nodes + 1)) if request.max_nodes > 0 else 0):
            parent = len(tokens) - 1
            if tokens and rng.random() < fork:
                parent = int(rng.integers(-1, len(tokens)))
            depth = len(paths(parents)[parent]) if parent >= 0 else 0
            place = base + depth
            taken = {tokens[i] for i in range(len(tokens)) if parents[i] == parent}
            token = known[place] if place < len(known) and rng.random() < right else int(rng.integers(n_vocab))
            if depth < request.max_depth and token not in taken:
                tokens.append(token)
                parents.append(parent)
        return Draft(np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32), origin="scripted")

    return script


@dataclass
class Answer:
    """All events of a request, put together."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    log_probs: list[TokenLogProb] = field(default_factory=list)
    finish: FinishReason | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Takes the next event."""
        assert self.finish is None, "an event behind the last one"
        self.events.append(event)
        self.text += event.text
        self.tokens += event.tokens
        self.origins += event.origins
        self.log_probs += event.log_probs
        self.finish, self.stats = event.finish, event.stats


def answer_all(loop: Loop, requests: Mapping[int, Request]) -> dict[int, Answer]:
    """Admits one request per slot and steps until all are answered."""
    answers = {index: Answer() for index in requests}
    for index, request in requests.items():
        loop.admit(index, request)
    while loop.active:
        for event in loop.step():
            answers[event.slot].add(event)
    return answers


def answer(loop: Loop, request: Request, slot: int = 0) -> Answer:
    """Answers one request."""
    return answer_all(loop, {slot: request})[slot]


def prompt(*tokens: int) -> Tokens:
    """Tokens as the engine takes them."""
    return np.array(tokens, dtype=np.int32)
