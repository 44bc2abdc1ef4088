"""Grammars at work: which tokens of a model's vocabulary may come next. llguidance finds them."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from localspec.engine.interfaces import Constraint
from localspec.errors import GrammarError, KernelError, LocalspecError, UsageError
from localspec.grammar.grammar import ENDLESS, Grammar, Trigger, deeply, words
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.types import NO_TOKENS, Tokens

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask: TypeAlias = npt.NDArray[np.bool_]
_KEPT = 32
"""Compiled grammars that are kept: an application asks for the same few again and again."""


class Compiler:
    """Makes matchers for one model's vocabulary. Thread-safe."""

    def __init__(self, model: Model) -> None:
        """`model` must stay open until `close`."""
        self._model: Model | None = model
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, Matcher] = OrderedDict()
        self._lock = threading.Lock()
        """Held for a moment."""
        self._compiling = threading.Lock()
        """Held while something is compiled, which may take seconds."""

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of an answer. The first one takes a second with a large vocabulary."""
        if (found := self._known(grammar)) is not None:
            return found
        with self._compiling:
            found = self._known(grammar)
            if found is None:
                found = deeply(lambda: self._compile(grammar.read()))
                with self._lock:
                    self._compiled[grammar] = found
                    while len(self._compiled) > _KEPT:
                        self._compiled.popitem(last=False)
            return found

    def constraint(self, grammar: Grammar) -> Constraint:
        """The same, which holds from where the grammar's trigger says."""
        matcher = self.compile(replace(grammar, trigger=None))
        return matcher if grammar.trigger is None else Lazy(matcher, grammar.trigger, matcher.n_vocab)

    def _known(self, grammar: Grammar) -> Matcher | None:
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
            return found

    def _compile(self, grammar: Grammar) -> Matcher:
        from llguidance import LLMatcher

        if self._model is None:
            raise LocalspecError("The model is closed.")
        if self._tokenizer is None:
            self._tokenizer = _tokenizer(self._model)
        matcher = LLMatcher(self._tokenizer, grammar.source, log_level=0)
        if matcher.is_error():
            raise UsageError(f"The {grammar.name} cannot be used: {_reason(matcher)}.")
        first = Matcher(matcher, self._tokenizer.eos_token, self._model.end_tokens, self._model.n_vocab, grammar)
        try:
            mask = first.mask(())
        except GrammarError as error:
            why = _reason(matcher)
            hint = "Let it end somewhere." if why == ENDLESS else error.hint
            raise UsageError(f"The {grammar.name} cannot be used: {why}.", hint) from error
        if mask is not None and not mask.any():
            raise UsageError(f"The {grammar.name} admits no answer.")
        return first

    def close(self) -> None:
        """Nothing is compiled any more; waits for what is being compiled."""
        with self._compiling, self._lock:
            self._model = self._tokenizer = None
            self._compiled.clear()


class Matcher:
    """Implements `engine.interfaces.Constraint`: how far an answer has come in a grammar."""

    def __init__(
        self,
        matcher: LLMatcher,
        end: int,
        end_tokens: frozenset[int],
        n_vocab: int,
        grammar: Grammar,
        first: LLMatcher | None = None,
    ) -> None:
        """
        Args:
            matcher: llguidance's, in the state of the answer so far.
            end: the only end token that llguidance knows; each of `end_tokens` stands for it.
            n_vocab: entries of a logits row.
            first: the same at the beginning of an answer, which is not advanced; None = `matcher` is.
        """
        self.grammar = grammar
        self._first = first
        self._said: list[int] = []
        """Tokens that `matcher` has taken since it was at the beginning."""
        self._matcher, self._end, self._end_tokens, self.n_vocab = matcher, end, end_tokens, n_vocab
        self._ends = np.array(sorted(end_tokens), dtype=np.int64)
        self._masks: dict[tuple[int, ...], Mask | None] = {}
        """By path, since the last token: draft model and target ask for the same ones."""

    def fresh(self) -> Matcher:
        """The same grammar at the beginning of an answer."""
        copy = self._matcher.deep_copy()
        copy.reset()
        return Matcher(copy, self._end, self._end_tokens, self.n_vocab, self.grammar, self._first or self._matcher)

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_stopped())

    def fits(self, path: Sequence[int]) -> int:
        if self._matcher.is_stopped():
            return 0
        return int(self._matcher.validate_tokens(self._known(path)))

    def mask(self, path: Sequence[int]) -> Mask | None:
        key = tuple(path)
        if key not in self._masks:
            self._masks[key] = self._mask(key)
        return self._masks[key]

    def _mask(self, path: tuple[int, ...]) -> Mask | None:
        matcher = self._matcher
        if matcher.is_error():
            raise self._too_complex()
        if matcher.is_stopped() or not self._end_tokens.isdisjoint(path):
            return None
        if path and not matcher.consume_tokens(list(path)):
            raise self._behind(path)
        try:
            if matcher.is_stopped() and not matcher.is_error():
                return None
            packed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            if matcher.is_error():
                raise self._behind(path)
        finally:
            if path:
                matcher.rollback(len(path))
        mask = np.unpackbits(packed, count=self.n_vocab, bitorder="little").view(np.bool_)
        mask[self._ends] = mask[self._end]
        return mask

    def _behind(self, path: tuple[int, ...]) -> GrammarError:
        """The error after a path; an answer that does not take it goes on, though llguidance leaves no error."""
        error = self._too_complex()
        if path and self._first is not None:
            self._matcher = self._first.deep_copy()
            self._matcher.consume_tokens(self._said)
        return error

    def _too_complex(self) -> GrammarError:
        why = _reason(self._matcher).partition(";")[0]
        return GrammarError(
            f"The {self.grammar.name} became too complex while the answer was written: {why}.",
            "Give it fewer alternatives that begin alike, and smaller bounds.",
        )

    def forced(self) -> Tokens:
        if self._matcher.is_stopped() or self._matcher.is_error():
            return NO_TOKENS
        return np.array(self._matcher.compute_ff_tokens(), dtype=np.int32)

    def advance(self, token: int) -> None:
        self._masks.clear()
        known = self._known([token])
        self._said += known
        if not self._matcher.consume_token(*known):
            if "satisfy the grammar" not in _reason(self._matcher):
                raise self._too_complex()
            raise KernelError(f"The grammar does not take token {token}: {_reason(self._matcher)}.")

    def _known(self, path: Sequence[int]) -> list[int]:
        return [self._end if token in self._end_tokens else int(token) for token in path]


def _tokenizer(model: Model) -> LLTokenizer:
    """llguidance's view of a vocabulary. Its own module for llama.cpp has the same, but imports llama-cpp-python."""
    from llguidance import LLTokenizer

    api, vocab = lib.api(), model.vocab
    convert = api.llama_token_to_piece
    control, defined = api.LLAMA_TOKEN_ATTR_CONTROL, api.LLAMA_TOKEN_ATTR_USER_DEFINED
    buffer = ctypes.create_string_buffer(1024)
    tokens: list[bytes] = []
    for token in range(model.n_vocab):
        count, kind = convert(vocab, token, buffer, len(buffer), 0, True), api.llama_vocab_get_attr(vocab, token)
        piece = buffer.raw[:count] if count >= 0 else model.piece(token, special=True)
        if kind & control or (kind & defined and piece.startswith(b"<") and piece.endswith(b">")):
            piece = b"\xff" + piece  # so llguidance knows tokens that no text may have
        tokens.append(piece)
    end = model.eos if model.eos is not None else min(model.end_tokens, default=api.llama_vocab_eos(vocab))
    tokenize = ctypes.cast(api._lib.llama_tokenize, ctypes.c_void_p).value
    maker: Any = LLTokenizer  # its stubs leave this function out
    found: LLTokenizer = maker.from_llamacpp(
        tokens=tokens, vocab_ptr=vocab, tokenize_fptr=tokenize, eos_token=end, slices=None
    )
    return found


def _reason(matcher: LLMatcher) -> str:
    return words(matcher.get_error())


class Lazy:
    """A grammar that holds only from a mark on: what comes before the mark is free, and costs nothing."""

    def __init__(self, grammar: Constraint, trigger: Trigger, n_vocab: int) -> None:
        """`grammar`: what must follow the mark, the mark included; `n_vocab`: entries of a logits row."""
        self.grammar, self.trigger = grammar, trigger
        self._free = np.ones(n_vocab, dtype=np.bool_)
        self._free.flags.writeable = False
        self._thinking = trigger.thinking
        self._held: Constraint | None = None  # the grammar where it holds
        for token in trigger.said:
            self.advance(token)

    def fresh(self) -> Lazy:
        """The same at the beginning of an answer."""
        return Lazy(self.grammar, self.trigger, len(self._free))

    @property
    def complete(self) -> bool:
        return self._held is not None and self._held.complete

    def fits(self, path: Sequence[int]) -> int:
        return self._follow(path)[0]

    def mask(self, path: Sequence[int]) -> Mask | None:
        _, held, rest = self._follow(path)
        return self._free if held is None else held.mask(rest)

    def forced(self) -> Tokens:
        return NO_TOKENS if self._held is None else self._held.forced()

    def advance(self, token: int) -> None:
        if self._held is None:
            self._thinking = self._thinks(token, self._thinking)
            if self._thinking or token != self.trigger.opening:
                return
            self._held = self.grammar.fresh()
        self._held.advance(token)
        if self.trigger.again and self._held.complete:
            self._held = None

    def _thinks(self, token: int, before: bool) -> bool:
        opening, closing = self.trigger.thought
        return token != closing if before else token == opening

    def _follow(self, path: Sequence[int]) -> tuple[int, Constraint | None, list[int]]:
        """How many tokens of a path fit, the grammar that holds after them, and those of them that it takes."""
        held, at, thinking = self._held, 0, self._thinking
        while True:
            if held is None:
                while at < len(path):
                    thinking = self._thinks(path[at], thinking)
                    if not thinking and path[at] == self.trigger.opening:
                        held = self.grammar.fresh()
                        break
                    at += 1
                else:
                    return at, None, []
            rest = list(path[at:])
            taken = rest[: held.fits(rest)]
            complete = False
            with suppress(KernelError):  # asking for the mask raises it again
                complete = self.trigger.again and held.mask(taken) is None
            if not complete:
                return at + len(taken), held, taken
            at, held = at + len(taken), None
