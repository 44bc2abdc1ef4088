"""A small model guesses ahead, all slots in one batch, in the target's tokens: chains, and trees that grow best first.

Its context keeps the KV of its own guesses, so nothing is evaluated twice: after a pass only the tokens it has not
seen are fed. It draws with the target's noise (*coupled*: Daliri, Musco, Suresh 2024), so that where the two
distributions agree the two tokens agree too.

Trees grow where they are likeliest to be reached (EAGLE-2: Li et al. 2024, arXiv 2406.16858). A level costs one pass of
the draft model, however many paths it goes on: each time the most promising guesses so far are followed, wherever they
stand, and in the end the best ones are sent, which always form a tree.

A draft model with another tokenizer is seen from the target's side: histories and rows in the target's tokens.

The draft model reads the same text in its own tokens. Text is cut where tokenizers cut it anyway, before the space of a
word, and every piece is tokenised by itself. Where the cuts are depends on the text before them alone, so a longer
history keeps all tokens of the shorter one but those of its last, unfinished piece, and what is read is a function of
the history.

Token-level intersection (TLI: Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding
Algorithms for Heterogeneous Vocabularies"): its logits for tokens that both vocabularies have stand at the target's
ids, all others are -inf. So a token drawn from a row comes from the restricted distribution, and every rule of
verification is as exact as with a draft model that shares the tokenizer.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from localspec.drafters.setup import check_branches
from localspec.engine.constraint import keep
from localspec.engine.interfaces import (
    EMPTY_DRAFT,
    HIGHEST_PROBABILITY,
    NEEDS_NOTHING,
    Draft,
    Drafter,
    DraftRequest,
    History,
)
from localspec.errors import DecodeError, KernelError, UsageError
from localspec.llama.library.batch import common_prefix
from localspec.models.facts.pairing import SharedVocabulary
from localspec.native import kernels
from localspec.types import NO_TOKENS, Feed, Float32Array, LogitRows, Purpose, SparseProbs, Tokens


class DraftContext(Protocol):
    """The draft model's cache, as far as it is asked (`llama.context.Context` with `grid_prefill=False`)."""

    n_ctx: int
    n_paths: int
    """Most paths of a slot that go different ways; above 1, several feeds of one may begin with the same history."""
    n_vocab: int

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass; the row after the last token of every feed, all -inf where there is nothing to guess."""

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """One pass towards a cache of all tokens but the last; how many are cached then."""

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Number of leading tokens that are cached."""


_MOST_READ_ALONG = 16
"""Most tokens that are read in the pass of the first guess. More tokens are read in chunks, one before each pass of the
target, so that neither a cancel nor another slot waits for a whole prompt."""
_LEAST_REACH = 0.02
"""Least probability of reaching a guess at which the draft goes on after it."""


@dataclass(slots=True)
class _Chain:
    """A draft while it is drawn: a main chain, with leaves beside it when `branches` > 1."""

    request: DraftRequest
    path: Tokens
    """int32[history + max_depth]; the history, then the main chain."""
    length: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[SparseProbs] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    last_node: int = -1
    main: list[float] = field(default_factory=list)
    """Confidences of the main chain."""
    done: bool = False


@dataclass(slots=True, eq=False)
class _Guess:
    """A guessed token; or the last token of the history, which is the parent of the first guesses and has no parent."""

    path: Tokens
    """int32[n]: the history and all guesses up to this one."""
    parent: _Guess | None = None
    depth: int = 0
    reach: float = 1.0
    """Probability that this guess and all guesses before it are right."""
    confidence: float = 1.0
    followed: bool = False
    """Whether the draft goes on after this guess, which takes a path in the context."""


class DraftModel(Drafter):
    """Drafts with a model that a `DraftContext` evaluates, which may be a trained head's. It observes nothing: the next
    draft feeds what the history has grown by."""

    NAME = "draft"
    needs = NEEDS_NOTHING
    free = False

    def __init__(
        self,
        context: DraftContext,
        end_tokens: frozenset[int],
        branches: int = 1,
        name: str = NAME,
        release: Callable[[], None] | None = None,
    ) -> None:
        """After one of `end_tokens` nothing is guessed (the answer is over). With 1 of `branches` a chain is drawn; two
        or more draw a tree, and that many guesses are followed in a pass; or a chain with leaves beside it where the
        context has one path, and for rules that a choice among drawn tokens would bend (`needs_probs`). `release` frees
        a cache that was made for this drafter alone; None = the caller frees it."""
        check_branches(branches)
        self.name, self.branches = name, branches
        self._context: DraftContext | None = context
        self._n_paths, self._n_ctx = context.n_paths, context.n_ctx
        self._end_tokens, self._release = end_tokens, release

    def missing(self, slot: int, history: History) -> int:
        if self._context is None:
            return 0
        return len(history) - self._context.reusable(slot, history.tokens, len(history))

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if self.branches == 1 or self._n_paths == 1:
            return self._chains(requests)
        return [self._chains([one])[0] if one.needs_probs else self._tree(one) for one in requests]

    def close(self) -> None:
        self._context = None
        release, self._release = self._release, None
        if release is not None:
            release()

    def _ready(self, request: DraftRequest) -> bool:
        """Whether it can guess. Reads a chunk of what is missing, if that is much."""
        tokens, context = request.history.tokens, self._context
        if context is None or min(request.max_nodes, request.max_depth) < 1 or len(tokens) >= self._n_ctx:
            return False
        if (tokens >= context.n_vocab).any():  # the draft model's vocabulary may lack the target's last ids
            return False
        if self.missing(request.slot, request.history) <= 1 + _MOST_READ_ALONG:
            return True
        with _passing():
            return context.prefill_chunk(request.slot, tokens, len(tokens)) >= len(tokens) - 1

    def _decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        assert self._context is not None
        with _passing():
            return self._context.decode(feeds)

    # -- chains -----------------------------------------------------------------------------------------------------

    def _chains(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        chains = []
        for request in requests:
            tokens = request.history.tokens
            path = np.empty(len(tokens) + max(request.max_depth, 0), dtype=np.int32)
            path[: len(tokens)] = tokens
            chains.append(_Chain(request, path, len(tokens), done=not self._ready(request)))
        while growing := [chain for chain in chains if not chain.done]:  # one decode of all slots
            feeds = [Feed(chain.request.slot, chain.path[: chain.length], chain.length) for chain in growing]
            for chain, rows in zip(growing, self._decode(feeds), strict=True):
                self._extend(chain, rows)
        return [self._made(one.tokens, one.parents, one.confidence, one.probs) for one in chains]

    def _made(
        self, tokens: list[int], parents: list[int], confidence: list[float], probs: Sequence[SparseProbs] = ()
    ) -> Draft:
        if not tokens:
            return EMPTY_DRAFT
        nodes = np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32)
        return Draft(*nodes, tuple(probs) or None, np.array(confidence, dtype=np.float32), self.name)

    def _extend(self, chain: _Chain, rows: LogitRows) -> None:
        request, length = chain.request, chain.length
        history, sampling, noise = chain.path[:length], request.asked.sampling, request.noise
        count = min(self.branches, request.max_nodes - len(chain.tokens))
        try:
            rows = masked(request, history, rows)
            found, shares = kernels.sample(rows, 0, sampling, history, noise, length, count)
            shares = np.minimum(shares, HIGHEST_PROBABILITY)
        except KernelError:  # nothing left to draw: nothing to guess; the target has its own say
            chain.done = True
            return
        parent, chain.last_node = chain.last_node, len(chain.tokens)
        chain.tokens += found.tolist()
        chain.parents += [parent] * len(found)
        chain.confidence += shares.tolist()
        chain.main.append(float(shares[0]))
        if request.needs_probs:
            chain.probs += _drawn_from(kernels.distribution(rows, 0, sampling, history, noise, length), found)
        chain.path[length] = found[0]
        chain.length += 1
        chain.done = (
            # A draft that was drawn for *rejection* must not end because of what was drawn.
            (not request.needs_probs and int(found[0]) in self._end_tokens)
            or len(chain.tokens) >= request.max_nodes
            or len(chain.main) >= request.max_depth
            or chain.length >= self._n_ctx
            or not request.price.pays(chain.main, len(chain.tokens))
        )

    # -- trees ------------------------------------------------------------------------------------------------------

    def _tree(self, request: DraftRequest) -> Draft:
        if not self._ready(request):
            return EMPTY_DRAFT
        guesses: list[_Guess] = []
        waiting, ways = [_Guess(request.history.tokens)], 1
        for _ in range(request.max_depth):
            rows = self._decode([Feed(request.slot, guess.path, len(guess.path)) for guess in waiting])
            for guess, said in zip(waiting, rows, strict=True):
                guess.followed = True
                guesses += self._after(request, guess, said)
            waiting, ways = self._worth_following(request, guesses, ways)
            if not waiting:
                break
        best = _best(guesses, request.max_nodes)
        numbers = {id(guess): number for number, guess in enumerate(best)}
        parents = [numbers.get(id(guess.parent), -1) for guess in best]
        return self._made([int(guess.path[-1]) for guess in best], parents, [guess.confidence for guess in best])

    def _after(self, request: DraftRequest, guess: _Guess, rows: LogitRows) -> list[_Guess]:
        """The best few guesses after one, in trial order."""
        path, count = guess.path, self.branches
        try:
            rows = masked(request, path, rows)
            found, shares = kernels.sample(rows, 0, request.asked.sampling, path, request.noise, len(path), count)
        except KernelError:  # nothing left to draw
            return []
        chances = _chances(request, len(path), found, shares, count)
        return [
            _Guess(np.append(path, token), guess, guess.depth + 1, guess.reach * chance, chance)
            for token, chance in zip(found, chances, strict=True)
        ]

    def _worth_following(self, request: DraftRequest, guesses: Sequence[_Guess], ways: int) -> tuple[list[_Guess], int]:
        """The most promising guesses that were not followed yet, and how many ways the context's paths then go."""
        best = _best(guesses, request.max_nodes)
        if not best:
            return [], ways
        deepest: _Guess | None = max(best, key=lambda guess: guess.depth)  # the likeliest of these
        path: list[float] = []
        while deepest is not None and deepest.parent is not None:
            path.append(deepest.confidence)
            deepest = deepest.parent
        if not request.price.pays(path[::-1], len(best)):
            return [], ways
        found: list[_Guess] = []
        least = _LEAST_REACH
        if len(best) == request.max_nodes:  # a guess after a less likely one would not be sent
            least = max(least, best[-1].reach)
        for guess in best:
            full = guess.depth >= request.max_depth or len(guess.path) >= self._n_ctx
            if guess.followed or full or guess.reach <= least or int(guess.path[-1]) in self._end_tokens:
                continue
            forks = any(other.followed or other in found for other in guesses if other.parent is guess.parent)
            if len(found) == self.branches or ways + forks > self._n_paths:
                break
            found.append(guess)
            ways += forks
        return found, ways


@contextmanager
def _passing() -> Iterator[None]:
    """A pass that fails raises a `DecodeError`, for which the drafter is dropped and the chat goes on."""
    try:
        yield
    except (KernelError, UsageError) as error:
        raise DecodeError(str(error)) from error


def masked(request: DraftRequest, path: Tokens, rows: LogitRows) -> LogitRows:
    """The row after `path`, which begins with the history, with the request's grammar applied; one of nothing but -inf
    where the answer is over."""
    if request.constraint is None:
        return rows
    mask = request.constraint.mask(path[len(request.history) :].tolist())
    row = np.full((1, rows.n_vocab), -np.inf, dtype=np.float32)
    if mask is not None:
        keep(row[0], rows[0], mask)
    return LogitRows.from_matrix(row)


def _drawn_from(probs: SparseProbs, drawn: Tokens) -> list[SparseProbs]:
    """The distribution each of `drawn` (without replacement) came from: what its earlier siblings left.

    Temperature 0 leaves nothing after the first; the others are then the next most likely, a certain guess each."""
    found: list[SparseProbs] = []
    for token in drawn:
        if not len(probs.tokens):
            probs = SparseProbs(np.array([token], dtype=np.int32), np.ones(1))
        found.append(probs)
        keep = probs.tokens != token
        rest = probs.probs[keep]
        probs = SparseProbs(probs.tokens[keep], rest / rest.sum() if len(rest) else rest)
    return found


def _best(guesses: Sequence[_Guess], count: int) -> list[_Guess]:
    """The likeliest to be reached, which form a tree: none is likelier than its parent, and of equals the first is
    taken, which is the parent, or the sibling that is tried first."""
    return sorted(guesses, key=lambda guess: -guess.reach)[:count]


def _chances(request: DraftRequest, position: int, tokens: Tokens, shares: Float32Array, count: int) -> list[float]:
    """Probability of each guess to be the target's token, falling in trial order.

    Where a draw is noisy, the noise is the target's own (*coupled*): with p a share and g the noise at that place, what
    separates two guesses is T (log p + g), in logits. What is not among the guesses counts as much as the last of them;
    fewer of them than the `count` asked for are all there are."""
    temperature = request.asked.sampling.temperature
    if temperature <= 0.0:
        return [min(HIGHEST_PROBABILITY, float(share)) for share in shares]
    with np.errstate(divide="ignore"):  # a share that is too small for float32 is none
        logs = np.log(shares)
    scores = logs + kernels.gumbel(request.noise, Purpose.SAMPLE, position, tokens)
    weights = np.exp(temperature * (scores - scores[0]))
    others = weights[-1] if len(tokens) == count else 0.0
    return [min(HIGHEST_PROBABILITY, float(chance)) for chance in weights / (weights.sum() + others)]


_PIECE_START = re.compile(rb"(?<=\S)(?= )")
_LONGEST_PIECE = 128
"""Most bytes of a piece without a cut: it ends at the first character after them."""
_CONTINUATION_BYTES = frozenset(range(0x80, 0xC0))
"""Continuation bytes of UTF-8: a character has three of them at most."""
_NOT_UTF8 = re.compile("([\udc80-\udcff]+)")
_CACHED_PIECES = 1 << 14
_TOKENS_A_CALL = 1024
"""Most tokens of a history that are translated in one call: some 10 ms, for which all slots wait."""


class Tokenizer(Protocol):
    """A model's own tokenizer (`llama.model.Model`)."""

    bos: int | None
    add_bos: bool

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens:
        """int32[n]."""

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes a token adds to a text, with `special` the names of control tokens, too."""


class Translator:
    """Translates the tokens of a target into those of a draft model."""

    def __init__(self, target: Tokenizer, draft: Tokenizer, shared: SharedVocabulary) -> None:
        self.beginning = [draft.bos] if draft.add_bos and draft.bos is not None else []
        """Tokens with which every text of the draft model starts."""
        own = target.add_bos or draft.add_bos
        self.dropped = target.bos if own else None
        """The token of the target that is dropped where a text begins: its tokenizer put it there, or the draft model
        has its own beginning."""
        self.controls: Mapping[int, int] = shared.controls
        """{control token of the target: the same one of the draft model}; of others the draft model reads the names."""
        self.text = functools.lru_cache(maxsize=_CACHED_PIECES)(functools.partial(target.piece, special=True))
        self.encode = functools.lru_cache(maxsize=_CACHED_PIECES)(self._encode)
        """(piece, whether a text starts with it) -> the draft model's tokens for it."""
        self._draft, self._byte_ids = draft, shared.byte_ids
        self._target_adds_space = _adds_space(target)
        self._after_line = self._tokens("\n") if _adds_space(draft) else []

    def _encode(self, piece: bytes, starts: bool) -> list[int]:
        if starts and self._target_adds_space and piece.startswith(b" "):
            piece = piece[1:]  # put there by the target's tokenizer; the draft's has its own habits
        found: list[int] = []
        for part in _NOT_UTF8.split(piece.decode("utf-8", "surrogateescape")):
            if _NOT_UTF8.match(part):  # a byte that has no token is left out
                raw = part.encode("utf-8", "surrogateescape")
                found += [self._byte_ids[byte] for byte in raw if byte in self._byte_ids]
            elif part:
                inside = self._after_line if found or not starts else []
                tokens = self._tokens("\n" + part) if inside else []
                # Inside a text: without the space that some tokenizers put before all they read.
                found += tokens[len(inside) :] if inside and tokens[: len(inside)] == inside else self._tokens(part)
        return found

    def _tokens(self, part: str) -> list[int]:
        found: list[int] = self._draft.tokenize(part, special=False, add_bos=False).tolist()
        return found


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Whether it puts a space before every text, as SentencePiece does."""
    tokens = tokenizer.tokenize("a", special=False, add_bos=False).tolist()
    return b"".join(tokenizer.piece(token) for token in tokens).startswith(b" ")


class Translation:
    """The history of one slot, translated as it grows."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._history = NO_TOKENS
        first = translator.beginning
        self._states: list[tuple[int, bytes, bool]] = [(len(first), b"", True)]
        """One state before each token of the history and one after the last: number of final tokens of the draft model,
        the unfinished piece, and whether a text starts with this piece."""
        self._buffer = np.array([*first, *[0] * 256], dtype=np.int32)
        self._length = len(first)

    def of(self, history: Tokens) -> tuple[Tokens, int]:
        """The draft's tokens for int32[n] of the target, as far as one call goes: int32[m], a view that is valid until
        the next call, and how many of the n are left for the next calls."""
        same = common_prefix(self._history, history)
        part = history[: same + _TOKENS_A_CALL]
        if same == len(part) == len(self._history):
            return self._buffer[: self._length], len(history) - len(part)
        translator, states = self._translator, self._states
        del states[same + 1 :]
        count, piece, starts = states[same]
        for token in part[same:].tolist():
            control = translator.controls.get(token)
            if len(states) == 1 and token == translator.dropped:
                pass
            elif control is not None:
                count = self._put(count, [*translator.encode(piece, starts), control])
                piece, starts = b"", True
            else:
                *done, piece = pieces(piece, translator.text(token))
                for one in done:
                    count = self._put(count, translator.encode(one, starts))
                    starts = False
            states.append((count, piece, starts))
        self._history = part.copy()
        self._length = self._put(count, translator.encode(piece, starts))
        return self._buffer[: self._length], len(history) - len(part)

    def _put(self, start: int, tokens: list[int]) -> int:
        """Writes tokens from a place on; returns where they end."""
        end = start + len(tokens)
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros(end, dtype=np.int32)])
        self._buffer[start:end] = tokens
        return end


def pieces(unfinished: bytes, more: bytes) -> list[bytes]:
    """Cuts a text that goes on by `more`, where there was nothing to cut yet; the last piece is unfinished."""
    text, start, found = unfinished + more, 0, list[bytes]()
    cuts = [match.start() for match in _PIECE_START.finditer(text, max(1, len(unfinished)))]
    for cut in (*cuts, len(text)):
        # One byte more than can belong to a last character is waited for, so that it does not matter how a text comes.
        while cut - start > _LONGEST_PIECE + 3:
            end = start + _LONGEST_PIECE
            while end < start + _LONGEST_PIECE + 3 and text[end] in _CONTINUATION_BYTES:
                end += 1
            found.append(text[start:end])
            start = end
        found.append(text[start:cut])
        start = cut
    return found


class TranslatedContext:
    """A `DraftContext` in the target's tokens over one in the draft model's."""

    def __init__(self, context: DraftContext, translator: Translator, shared: SharedVocabulary) -> None:
        """`context`: the draft model's cache; the caller frees it."""
        self.n_ctx = 2**31 - 1
        """No limit in tokens of the target: where the draft model's context is full, rows are empty."""
        self.n_vocab, self.n_paths = shared.target_size, 1
        self._context = context
        # Half the time of int32 places: 0.2 ms for 105,000 of them.
        self._target_ids, self._draft_ids = shared.target_ids.astype(np.intp), shared.draft_ids.astype(np.intp)
        self._translations = defaultdict[int, Translation](lambda: Translation(translator))
        self._matrix: Float32Array = np.empty((0, self.n_vocab), dtype=np.float32)

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass; a row of nothing but -inf where the draft model cannot read the history, or not yet."""
        if len(feeds) > len(self._matrix):
            self._matrix = np.full((len(feeds), self.n_vocab), -np.inf, dtype=np.float32)
        matrix = self._matrix[: len(feeds)]
        read: dict[int, Feed] = {}
        for index, feed in enumerate(feeds):
            tokens, left = self._translations[feed.slot].of(feed.tokens)
            if not left and self._fits(tokens):
                read[index] = replace(feed, tokens=tokens, prompt_length=len(tokens))
            else:
                matrix[index] = -np.inf
        rows = self._context.decode(list(read.values())) if read else []
        for index, found in zip(read, rows, strict=True):
            row = matrix[index]
            row[self._target_ids] = found[0].take(self._draft_ids)
        return [LogitRows.from_matrix(matrix[index : index + 1]) for index in range(len(feeds))]

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """One pass towards a cache of all tokens but the last; as for `reusable`, tokens left are the draft's."""
        translated, left = self._translations[slot].of(tokens)
        if not self._fits(translated):
            return len(tokens) - 1
        done = self._context.prefill_chunk(slot, translated, len(translated))
        return max(0, len(tokens) - left - (len(translated) - done))

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """How many leading tokens are cached, so that those after them are as many as the draft model must read (of
        those not translated yet, as many as they are); all but the last where it cannot read the history."""
        translated, left = self._translations[slot].of(tokens)
        if not self._fits(translated):
            return len(tokens) - 1
        missing = len(translated) - self._context.reusable(slot, translated, len(translated))
        return max(0, len(tokens) - left - missing)

    def _fits(self, translated: Tokens) -> bool:
        """Whether there is something to read, and room for it."""
        return 1 <= len(translated) <= self._context.n_ctx
