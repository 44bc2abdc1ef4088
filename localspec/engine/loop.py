"""The loop: draft, decode, verify, emit. One `step()` serves all active slots in one pass; before it, a piece of a
prompt that is still unread.

It knows no drafter, backend or model by name. Plain decoding is the same loop with a plan that drafts nothing,
so the baseline of every comparison is this very code. Next to read: `interfaces`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import numpy as np

from localspec.engine.constraint import Minimum, masked
from localspec.engine.interfaces import (
    Draft,
    DraftRequest,
    History,
    Outcome,
    Plan,
    Request,
    Target,
    Verdict,
    Vocabulary,
)
from localspec.engine.slot import TARGET_ORIGIN, Event, FinishReason, Origin, PassRecord, Slot, TextStream, TokenLogProb
from localspec.engine.stats import Beside, RequestStats
from localspec.errors import Cancelled, ContextOverflowError, DecodeError, DeviceError, KernelError, LocalspecError
from localspec.native import kernels
from localspec.types import Feed, LogitRows, Noise, Rule, SamplingParams, Tokens

PASSES_BETWEEN = 5
"""Plain passes that the time between two tokens of an answer may take while a prompt is read: a piece, and a pass."""
ALONE_SECONDS = 1.0
"""Seconds of a piece while no answer is decoded: a new request waits this long, and a cancel loses no more."""
ALONE_PASSES = 16
"""Plain passes that such a piece may take where these are more: every piece reads the weights, as a pass does."""
LEAST_PIECE, LEAST_ALONE = 4, 64
"""Tokens of a piece at least, beside answers and alone: fewer cost about as much."""
FIRST_PIECE = 32
"""Tokens of the first piece, when no cost is known."""
_PASSES_KEPT = 16
"""Number of last passes whose median counts as the pass: it ignores a stall and follows the load."""


class PieceSize:
    """The size of the next piece, from what the last piece and the last passes took."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self.passes: deque[float] = deque(maxlen=_PASSES_KEPT)
        """Seconds that plain decoding took for each of the last passes."""
        self._token = 0.0
        """Seconds for each token of the last piece; 0 = nothing was read yet."""

    def read(self, tokens: int, seconds: float) -> None:
        """Learns what a piece of `tokens` took. A slow one is believed by half: it may have been a stall."""
        if tokens > 0 and seconds > 0.0:
            found = seconds / tokens
            self._token = min(found, 2.0 * self._token) if self._token else found

    def piece(self, beside: bool) -> int:
        """Most tokens of the next piece; `beside`: whether answers are decoded meanwhile."""
        if not self._token or (beside and not self.passes):
            return min(FIRST_PIECE, self._largest)
        plain = median(self.passes or [0.0])
        seconds = (PASSES_BETWEEN - 1) * plain if beside else max(ALONE_SECONDS, ALONE_PASSES * plain)
        least = min(LEAST_PIECE if beside else LEAST_ALONE, self._largest)
        return max(least, int(min(seconds / self._token, self._largest)))


COMPARED_EVERY = 1 / 15
"""Seconds from one comparison with plain decoding to the next, and one at the end: people read it no more often."""


class Loop:
    """Generates for up to n slots of one target. Not thread-safe: one thread calls it."""

    def __init__(self, target: Target, plan: Plan, vocabulary: Vocabulary) -> None:
        self.target = target
        self.plan = plan
        self.vocabulary = vocabulary
        self.active: dict[int, Slot] = {}
        self._events: list[Event] = []
        """Events that were made since the last `step` and are not returned yet."""
        self._reading = PieceSize(target.grid)
        self._beside: dict[int, Beside] = {}
        """By number of slots in a pass, how slow passes that draft are beside plain ones."""

    def admit(
        self,
        index: int,
        request: Request,
        started: float | None = None,
        cancel: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Slot:
        """Gives the free slot of that index to a request; its prompt is read in the steps to come. `started` is
        perf_counter() when the request arrived; None = now. `cancel` and `progress` as in `Slot`. Raises
        ContextOverflowError: the prompt leaves no room for an answer."""
        if len(request.prompt) >= self.target.n_ctx:
            raise ContextOverflowError(
                f"The prompt has {len(request.prompt)} tokens and the context holds {self.target.n_ctx}.",
                "Shorten it or load the model with a larger context.",
            )
        now, history = perf_counter(), History(request.prompt)
        constraint = None if request.grammar is None else request.grammar.fresh()
        if request.min_tokens:
            ends = request.stop_tokens | (frozenset() if request.ignore_end else self.vocabulary.end_tokens)
            constraint = Minimum(request.min_tokens, ends, self.target.n_vocab, constraint)
        stats = RequestStats(prompt_tokens=len(history))
        stats.reused_tokens = self.target.reusable(index, history.tokens, len(history))
        begun = now if started is None else started
        slot = Slot(index, request, history, TextStream(request.stop), stats, begun, cancel, constraint, progress)
        slot.cached, slot.last_arrival = stats.reused_tokens, now
        self.active[index] = slot
        return slot

    def step(self) -> list[Event]:
        """Reads a piece of unread prompts, then runs a pass over all slots that decode; returns their events.

        Finished slots leave the loop. When a pass fails the step can be repeated: no event of earlier passes is lost.
        """
        for slot in list(self.active.values()):
            if slot.cancel():
                self._end(slot, FinishReason.CANCELLED)
        self._read_prompts()
        exact, rest = self.target.exact_widths, [slot for slot in self.active.values() if not slot.unread]
        while rest:  # under exactness the size of a group that shares a pass is an exact width
            size = len(rest)
            while exact is not None and size > 1 and size not in exact:
                size -= 1
            self._pass(rest[:size])
            rest = rest[size:]
        events, self._events = self._events, []
        return events

    def take_over(self, other: Loop) -> None:
        """Goes on with the requests of a loop whose device failed, after their last token; none of them is cached."""
        self.active, self._events = other.active, other._events
        for slot in self.active.values():
            slot.cached, slot.said, slot.stats.exact = 0, len(slot.history) - len(slot.request.prompt), False

    def abandon(self) -> list[Event]:
        """Forgets all requests; their cached tokens stay cached. Returns events that were not returned yet; those of
        unfinished requests have no `finish`."""
        for slot in self.active.values():
            if text := slot.text.finish():
                self._events.append(Event(slot.index, text, (), (), (), None, slot.stats))
        self.active.clear()
        events, self._events = self._events, []
        return events

    def _read_prompts(self) -> None:
        """Reads one piece of one prompt, or several short prompts that are no longer together: slots that decode never
        wait for more (`reading`). A piece is a whole chunk where the cache depends on how a prompt is cut.

        The prompt with the fewest unread tokens comes first. Tokens that other prompts read meanwhile (`overtaken`)
        are subtracted from this number, so every prompt gets its turn."""
        if not any(slot.unread for slot in self.active.values()):
            return
        beside = any(not slot.unread for slot in self.active.values())
        cuts = self.target.any_cut or (beside and self.target.exact_widths is None)
        left = piece = self._reading.piece(beside) if cuts else self.target.grid
        while left > 0 and (waiting := [slot for slot in self.active.values() if slot.unread]):
            slot = min(waiting, key=lambda one: one.unread - one.overtaken)
            size = min(slot.unread, self.target.grid)
            if size > left and not cuts:
                return
            size = min(size, left)
            self._read(slot, size if cuts else None)
            left -= max(size, piece // PASSES_BETWEEN if cuts and beside else 0)  # a short prompt takes a pass, too
            for other in waiting:
                if other is not slot:
                    other.overtaken += size

    def _read(self, slot: Slot, most: int | None) -> None:
        """Reads at most `most` tokens of a prompt, or a chunk, alone in its pass."""
        start, tokens = perf_counter(), slot.history.tokens
        try:
            copied = self.target.copy_prefix(slot.index, tokens, len(tokens)) - slot.cached
            if copied > 0:
                slot.stats.reused_tokens += copied
                slot.cached += copied
            if slot.unread:
                if slot.progress is not None and not slot.stats.prefill_seconds:  # how much there is to read
                    slot.progress(slot.cached, len(tokens) - 1)
                before, begun = slot.cached, perf_counter()
                slot.cached = self.target.prefill_chunk(slot.index, tokens, len(tokens), slot.cancel, most)
                seconds = perf_counter() - begun
                self._reading.read(slot.cached - before, seconds)
                if not slot.stats.prefill_seconds or before // self.target.grid < slot.cached // self.target.grid:
                    self.plan.read(slot.cached - before, before, seconds)  # pieces of a chunk are alike: one counts
            if slot.progress is not None:
                slot.progress(slot.cached, len(tokens) - 1)
        except Cancelled:
            self._end(slot, FinishReason.CANCELLED)
        except DeviceError:  # no other slot's chunk or pass would go better
            raise
        except LocalspecError as error:
            slot.failure = error
            self._end(slot, FinishReason.ERROR)
        slot.last_arrival = perf_counter()
        slot.stats.prefill_seconds += slot.last_arrival - start

    def _pass(self, slots: list[Slot]) -> None:
        start = perf_counter()
        lengths = {slot.index: len(slot.history) for slot in slots}
        requests = self._requests(slots)
        pending = [self.target.pending(slot.index, slot.history.tokens) for slot in slots]
        asked = perf_counter()
        proposal = self.plan.draft(self.target, requests, pending)
        drafts = proposal.drafts
        drafted = perf_counter()
        rows, width = self._decode(slots, drafts, pending)
        decoded = perf_counter()
        events: list[Event] = []
        outcomes: list[Outcome] = []
        for slot, slot_rows, draft, request in zip(slots, rows, drafts, requests, strict=True):
            seen, failure = slot_rows, None
            try:
                if slot.constraint is not None:
                    seen, failure = masked(slot_rows, draft, slot.constraint)
                verdict = verify(
                    seen, draft, slot.request.sampling, slot.history.tokens, request.noise, slot.request.rule
                )
                shown = seen if slot.request.drawn_log_probs else slot_rows
                events.append(self._emit(slot, shown, draft, verdict, request.noise))
            except KernelError as error:
                slot.failure, slot.finish = failure or error, FinishReason.ERROR
                events.append(Event(slot.index, "", (), (), (), slot.finish, slot.stats))
                continue
            outcomes.append(Outcome(slot.index, slot.history, draft, verdict, slot_rows))
        passed = perf_counter()
        review = self.plan.learn(proposal, outcomes, passed - drafted)
        learned = perf_counter()
        seconds, said = learned - start, {one.slot: one for one in outcomes}
        for event in events:
            if (outcome := said.get(event.slot)) is not None:
                event.record = PassRecord.of(outcome, width, seconds)
        self._events += events
        for slot in slots:
            if slot.finish is not None:
                self._release(slot)  # last: it may decode, and then the rows are gone
        end = perf_counter()
        self._reading.passes.append(review.plain_seconds or end - start)
        planned = drafted - asked + learned - passed
        for slot in slots:
            stats = slot.stats
            stats.draft_seconds += drafted - start
            stats.verify_seconds += decoded - drafted
            stats.host_seconds += end - decoded
            if review.curve is not None:
                beside = self._beside.setdefault(len(slots), Beside())
                brought = len(slot.history) - lengths[slot.index]
                slot.comparison.add(review, end - start - planned, end - start, beside, brought)
                if slot.finish is not None or end >= slot.compared + COMPARED_EVERY:
                    slot.compared = end
                    stats.compare(*slot.comparison.totals())
            stats.review(review)

    def _requests(self, slots: list[Slot]) -> list[DraftRequest]:
        requests = []
        for slot in slots:
            room = self.target.n_ctx - len(slot.history)
            nodes = min(room, self.target.longest_draft(len(slot.history)))
            if (left := slot.room) is not None:
                room = min(room, left)
                nodes = min(nodes, left - 1)  # the pass brings the next token by itself
            if slot.request.max_draft_tokens is not None:
                nodes = min(nodes, slot.request.max_draft_tokens)
            asked, noise, rules = slot.request, slot.noise(), slot.constraint
            requests.append(
                DraftRequest(slot.index, slot.history, nodes, nodes, asked, noise, room=room, constraint=rules)
            )
        return requests

    def _decode(
        self, slots: list[Slot], drafts: Sequence[Draft], pending: Sequence[int]
    ) -> tuple[list[LogitRows], int]:
        """Logits rows for each slot, and the number of rows of the pass."""
        exact = self.target.exact_widths
        rows = {}
        for slot, draft, waiting in zip(slots, drafts, pending, strict=True):
            alone = exact is not None and not draft and waiting > 1 and waiting not in exact
            if alone:
                self._catch_up(slot)
            rows[slot.index] = (1 if alone else waiting) + len(draft)
        speculative = any(map(len, drafts))
        widths = self.target.pass_widths(rows) if speculative or len(slots) > 1 else []
        inexact = any(exact is None or width not in exact for width in widths)
        for slot in slots:
            if inexact or slot.request.rule is not Rule.COUPLED:
                slot.stats.exact = False
        feeds = [
            Feed(slot.index, slot.history.tokens, len(slot.request.prompt), draft.tokens, draft.parents)
            for slot, draft in zip(slots, drafts, strict=True)
        ]
        found = self.target.decode(feeds)
        if exact is not None and self.target.exact_widths is None:  # the pass was not what it was proved to be
            for slot in slots:
                slot.stats.exact = False
        return found, sum(rows.values())

    def _catch_up(self, slot: Slot) -> None:
        """Decodes tokens that a tree left uncached, one a pass as plain decoding did; the last one stays for a pass."""
        tokens = slot.history.tokens
        for length in range(len(tokens) - self.target.pending(slot.index, tokens) + 1, len(tokens)):
            self.target.decode([Feed(slot.index, tokens[:length], len(slot.request.prompt))])

    def _emit(self, slot: Slot, rows: LogitRows, draft: Draft, verdict: Verdict, noise: Noise) -> Event:
        path: list[int] = verdict.accepted.tolist()
        tokens = [int(draft.tokens[node]) for node in path] + [verdict.next_token]
        origins = [Origin(draft.origin, depth) for depth in range(1, len(path) + 1)] + [TARGET_ORIGIN]
        kept, text, finish = self._until_stop(slot, tokens)
        slot.history.append(tokens[:kept])
        now = perf_counter()
        stats = slot.stats
        if not stats.passes:
            stats.ttft_seconds = now - slot.started
        else:
            stats.gaps.append(now - slot.last_arrival)
        slot.last_arrival = now
        stats.add_pass(draft.origin, len(draft), len(path), kept)
        log_probs = self._log_probs(slot, rows, [-1, *path], tokens[:kept], noise)
        slot.finish = finish
        return Event(slot.index, text, tuple(tokens[:kept]), tuple(origins[:kept]), log_probs, finish, stats)

    def _until_stop(self, slot: Slot, tokens: list[int]) -> tuple[int, str, FinishReason | None]:
        """Number of tokens that are kept, their text, and why the answer ends after them; None = it goes on."""
        request, shown = slot.request, ""
        for count, token in enumerate(tokens, start=1):
            finish: FinishReason | None = None
            if slot.constraint is not None:
                slot.constraint.advance(token)
            ends = token in self.vocabulary.end_tokens and not request.ignore_end
            if ends or token in request.stop_tokens:
                finish = FinishReason.STOP
            else:
                piece = self.vocabulary.piece(token, token in request.preserved)
                shown += slot.text.push(piece, watch=slot.stats.generated + count > request.min_tokens)
                if slot.text.stopped or (slot.constraint is not None and slot.constraint.complete):
                    finish = FinishReason.STOP
                elif request.max_tokens is not None and slot.stats.generated + count >= request.max_tokens:
                    finish = FinishReason.LENGTH
                elif len(slot.history) + count >= self.target.n_ctx:
                    finish = FinishReason.CONTEXT
            if finish is not None:
                return count, shown + slot.text.finish(), finish
        return len(tokens), shown, None

    def _log_probs(
        self, slot: Slot, rows: LogitRows, row_of: list[int], tokens: list[int], noise: Noise
    ) -> tuple[TokenLogProb, ...]:
        count = slot.request.top_log_probs
        if count is None:
            return ()
        found = []
        for place, (node, token) in enumerate(zip(row_of, tokens, strict=False)):  # a stop may have cut the tokens
            row = 1 + node
            if slot.request.drawn_log_probs:
                before = slot.history.tokens[: len(slot.history) - len(tokens) + place]
                found.append(_drawn(rows, row, token, slot.request, before, noise))
                continue
            value = float(kernels.log_probs(rows, row, np.array([token], dtype=np.int32))[0])
            top: tuple[tuple[int, float], ...] = ()
            if count:
                ids, values = kernels.top_log_probs(rows, row, count)
                top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
            found.append(TokenLogProb(token, value, float(rows[row][token]), top))
        return tuple(found)

    def _end(self, slot: Slot, finish: FinishReason) -> None:
        slot.finish = finish
        slot.stats.compare(*slot.comparison.totals())
        self._events.append(Event(slot.index, slot.text.finish(), (), (), (), finish, slot.stats))
        self._release(slot)

    def _release(self, slot: Slot) -> None:
        del self.active[slot.index]
        if slot.unread:  # whole chunks, which any request may use
            return
        # What stays cached must follow from the history alone, not from what was guessed.
        try:
            if self.target.exact_widths is not None:
                self._catch_up(slot)
        except DecodeError:
            self.target.forget(slot.index)  # it was for the next request only
            return
        tokens, prompt_length = slot.history.tokens, len(slot.request.prompt)
        self.target.forget(slot.index, keep=self.target.reusable(slot.index, tokens, prompt_length))


def verify(
    rows: LogitRows, draft: Draft, sampling: SamplingParams, history: Tokens, noise: Noise, rule: Rule
) -> Verdict:
    """A draft (a chain for *block*) and the target's rows in, a `Verdict` out: which of the draft the target would have
    said itself, and what it says next. A pure function: its randomness is named by `noise`.

    Row 0 follows the last of `history`, int32[n], row 1 + i follows node i; the next position is n. `noise.round` must
    be n unless the rule is *coupled*."""
    nodes = draft.tokens, draft.parents, draft.probs
    return Verdict(*kernels.verify(rows, *nodes, sampling, history, noise, len(history), rule))


def _drawn(rows: LogitRows, row: int, token: int, request: Request, before: Tokens, noise: Noise) -> TokenLogProb:
    """How likely a token was to be drawn, and others; then likely ones that could not. `before`: tokens before it."""
    drawn = kernels.distribution(rows, row, request.sampling, before, noise, len(before))
    values = dict(zip(drawn.tokens.tolist(), np.log(drawn.probs).tolist(), strict=True))
    count = request.top_log_probs or 0
    likely = kernels.top_log_probs(rows, row, count)[0].tolist() if count else []
    top = values | {one: values.get(one, -math.inf) for one in likely}
    return TokenLogProb(token, values.get(token, -math.inf), float(rows[row][token]), tuple(top.items())[:count])
