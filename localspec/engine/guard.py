"""The guard: what speculation may lose. Plain decoding's time is known (one row a pass), so a loss can be counted.

An account in seconds. It opens with the price of some plain passes, gains a small share of the time plain decoding
would have taken, and every pass with a draft books what it saved or lost, planning included. Savings count, but only
up to a few passes. No pass is planned that could lose more than may be lost. So over any text, after whatever came
before, and from the first token of a pair on,

    time <= (1 + SHARE + attention.SHARE) * plain time + _MOST_PASSES plain passes + the surprise of one pass

(and -_LEAST_PROVEN more plain passes, a debt that only drafts make which proved themselves; what was read in vain left
out, of which at most -_LEAST_WRITTEN_OFF passes are owed, see below): above 0.98 of plain decoding's speed for long
enough text even if every guess is wrong from the first to the last. A surprise is what a pass takes over what it was
expected to; it is booked, and the next passes make up for it. What a draft costs the plain pass behind it is booked
with the draft (`rebuild`). But what a machine takes that stalls is in no bound, as
it is in none of plain decoding's: of a pass at most 30 % over what was expected is booked; of a draft at most two
plain passes over that, once in 64 passes and ever more rarely. One page that had to be fetched from the disk ends no
speculation. The share of `attention` is for planning that comes to nothing; where a pass takes 30 ms it is not a
quarter used.

One answer must not lose all of that. What drafts may lose in a *stretch* (an answer, or so many tokens of a long one),
its *risk*, is its share, what it has saved itself, and at most _STRETCH_PASSES of the balance: an answer begins with
short drafts, and those that are accepted pay for longer ones. Savings of an answer are proof that its content can be
guessed, savings of another one are not. A stretch that has lost what it had goes on plain. Fewer passes would be a
stricter promise and a broken product: where a guess is right in 7 of 10 and pays twice over, one rejected draft at the
start would keep 64 tokens plain. But where a single rejected draft costs more than another pass, as without kernels
for wide passes, one or two are all that an answer may lose. So a draft without cost must then be *proved* first: what
such drafts would have brought, had they been sent, is known without sending them (`imagined`), and what they would
have saved is what a pass may lose, of a stretch that has lost its risk, too; and while the account is in debt, down to
_LEAST_PROVEN: what was lost on other content keeps no copy waiting that shows what it is worth. Nor does what a draft
model read in vain, however much that was: it is no part of this debt.

What the balance holds beyond one stretch is for *trials*: passes that show whether something pays by now. Every answer
adds _TRIAL_SHARE of its plain decoding to what they may lose, once, whoever is tried: several drafters share it, a
short answer tries little, and what was found out is not paid for again (`costly` weighs what is to be gained, too).

Reading a long prompt with a draft model is an *investment*: a loan that savings pay back before anything else. What is
left of it when another request comes into its slot is booked as a loss, and the next one must promise more.

Debts are forgotten in part: what passes lost beyond -_LEAST_BOOKED plain passes, readings that all evidence spoke for
beyond -_LEAST_WRITTEN_OFF and what proved drafts lose while those are owed, what that comes to where passes have become
shorter (a stall is over, a long chat closed), and all of it where the program ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

SHARE = 0.008
"""Of plain decoding's time, what may be lost."""
OPENING_PASSES = 12.0
"""Plain passes whose price the account opens with, the first time a pair runs."""
_MOST_PASSES = OPENING_PASSES
"""Plain passes of savings that it keeps."""
_LEAST_BOOKED, _LEAST_WRITTEN_OFF = -4.0, -12.0
"""Plain passes of debt at most, of what passes lost and of readings that were not paid back."""
_LEAST_PROVEN = -3.0
"""Plain passes of debt, readings left out, in which drafts that proved themselves are still sent."""
_STRETCH_PASSES, _UNPROVEN_PASSES = 4.0, 1.2
"""Plain passes of savings from before that a stretch may lose, and a single pass whose draft has proved nothing."""
_TRIAL_SHARE, _TRIAL_PASSES = 0.025, 8.0
"""Of an answer's plain decoding, what it adds to what trials may lose; and plain passes that this comes to at most, or
that trials may have lost beyond it."""
USUAL_ANSWER = 200.0
"""Tokens of an answer, before any was seen."""
_STRETCH_TOKENS = 64
"""Tokens of plain decoding in a stretch of a long answer."""
_OUTLIER = 0.3
"""A pass is booked as at most this share slower or faster than expected."""


def usual(seconds: float, expected: float) -> float:
    """What is booked of a pass that took so long: outliers are nobody's fault."""
    return min((1.0 + _OUTLIER) * expected, max((1.0 - _OUTLIER) * expected, seconds))


@dataclass(slots=True)
class Account:
    """What may still be lost, in seconds."""

    opening: float = OPENING_PASSES
    """Plain passes whose price it opens with; what an earlier run left, if there was one, and never a debt."""
    pass_seconds: float = 0.0
    """A plain pass, as of the last booking; 0 = the account is not open yet."""
    balance: float = 0.0
    risk: float = 0.0
    """What drafts may lose of it in the stretch that runs."""
    proof: float = 0.0
    """What drafts of this answer have saved, or would have saved had they been sent, less what others lost since."""
    allowance: float = 0.0
    """What trials may lose by now, were the balance no limit."""
    spent: float = 0.0
    """All time of booked passes, drafting and reading included."""
    plain: float = 0.0
    """What plain decoding would have taken for the same tokens."""
    _vain: float = 0.0
    """Of a debt, what is due to readings that were not paid back."""
    _stretch: float = 0.0
    """Plain decoding's time in that stretch."""
    _ahead: float = 0.0
    """Tokens to come that trials were allowed a share of already."""
    tokens: float = USUAL_ANSWER
    """Of the answers that run, expected."""

    def scale(self, pass_seconds: float) -> None:
        """Tells the price of a plain pass now; the first time opens the account, for an answer that has begun."""
        before, self.pass_seconds = self.pass_seconds, pass_seconds
        if not before:
            self.balance = self.opening * pass_seconds
            self.begin(1.0, self.tokens)
        elif pass_seconds < before:
            self._forget()

    def begin(self, share: float = 1.0, tokens: float = USUAL_ANSWER) -> None:
        """An answer of about so many tokens begins, and with it a stretch; `share` of the running answers are new."""
        self.tokens += share * (tokens - self.tokens)
        self.risk = min(self.balance, max(self._fresh, (1.0 - share) * self.risk))
        self.proof *= 1.0 - share
        self._stretch = 0.0
        self._ahead += share * (tokens - self._ahead)
        self._allow(share * tokens)

    @property
    def passes(self) -> float:
        """The balance in plain passes."""
        return self.balance / self.pass_seconds if self.pass_seconds else self.opening

    @property
    def open(self) -> bool:
        """Whether anything may be drafted because it seems to pay."""
        return self.risk > 0.0

    @property
    def unproven(self) -> float:
        """What a pass may lose whose draft cost nothing: it can prove itself first without being sent, and what others
        read in vain is no debt of its.
        """
        proven = min(self.proof, self.balance + self._vain - _LEAST_PROVEN * self.pass_seconds)
        return max(0.0, proven, min(self.balance, self.risk, _UNPROVEN_PASSES * self.pass_seconds))

    def passes_until(self, loss: float) -> float:
        """Plain passes until a pass may lose so much whose draft cost nothing and has proved nothing, or a stretch ends
        before that; infinite if it must be proved first.
        """
        if not self.pass_seconds:
            return 0.0
        if loss >= _UNPROVEN_PASSES * self.pass_seconds:
            return math.inf
        lacking = max(0.0, loss - min(self.balance, self.risk))
        return min(lacking / SHARE, _STRETCH_TOKENS * self.pass_seconds - self._stretch) / self.pass_seconds

    @property
    def trials(self) -> float:
        """What may be lost in trying."""
        return max(0.0, min(self.allowance, self.balance - self._fresh))

    @property
    def full(self) -> bool:
        """Whether trials could be allowed no more: it is long ago that one cost much."""
        return self.allowance >= _TRIAL_PASSES * self.pass_seconds

    def affords(self, loss: float) -> bool:
        """Whether so much may be lost in trying."""
        return loss <= self.trials

    def book(self, plain: float, spent: float, trial: bool = False) -> None:
        """A pass brought tokens that would have taken `plain` seconds, in `spent`; `trial`: to learn something."""
        self.plain += plain
        self.spent += spent
        share, saved = SHARE * plain, plain - spent
        self._add(share + saved)
        if saved < 0.0 and trial:
            self.allowance = max(-_TRIAL_PASSES * self.pass_seconds, self.allowance + saved)
            saved = 0.0
        self.prove(saved)
        self.risk = min(self.balance, self.risk + share + saved)
        self._stretch += plain
        if self._stretch > _STRETCH_TOKENS * self.pass_seconds:
            self._stretch = 0.0
            self.risk = max(self.risk, min(self.balance, self._fresh))
            self._ahead -= _STRETCH_TOKENS
            self._allow(-self._ahead)  # it is longer than expected
            self._ahead = max(0.0, self._ahead)

    def prove(self, saved: float) -> None:
        """A draft saved so much, or would have saved it (below 0: lost)."""
        self.proof = min(_MOST_PASSES * self.pass_seconds, max(0.0, self.proof + saved))

    def write_off(self, seconds: float) -> None:
        """An investment was not paid back."""
        before, vain = self.balance, self._vain
        self._add(-seconds, _LEAST_WRITTEN_OFF)
        self._vain = min(vain + before - self.balance, max(0.0, -self.balance))
        self.risk = min(self.balance, self.risk)

    def _forget(self) -> None:
        """Debts are so many plain passes at most of what those cost now: four that were lost while the machine stalled
        would be hundreds when it is quiet again.
        """
        unit = self.pass_seconds
        self.balance = max(self.balance, _LEAST_BOOKED * unit - self._vain, _LEAST_WRITTEN_OFF * unit)
        self._vain = max(0.0, min(self._vain, -self.balance))
        self.risk = max(self.risk, min(self.balance, _LEAST_BOOKED * unit))
        self.allowance = max(self.allowance, -_TRIAL_PASSES * unit)

    @property
    def _fresh(self) -> float:
        """What a stretch may lose that has saved nothing yet."""
        return _STRETCH_PASSES * self.pass_seconds

    def _allow(self, tokens: float) -> None:
        """So many more tokens will be decoded, and a share of their time may go into trials."""
        unit, tokens = self.pass_seconds, max(0.0, tokens)
        self.allowance = min(_TRIAL_PASSES * unit, self.allowance + _TRIAL_SHARE * tokens * unit)

    def _add(self, seconds: float, least: float = _LEAST_BOOKED) -> None:
        unit = self.pass_seconds
        bottom, wanted = min(self.balance, least * unit), self.balance + seconds
        self.balance = min(_MOST_PASSES * unit, max(bottom, wanted))
        forgotten = max(0.0, self.balance - wanted)  # what passes lose takes the place of what was read in vain
        self._vain = max(0.0, min(self._vain - forgotten, -self.balance))


@dataclass(slots=True)
class Loan:
    """Reading done for one request, until it has paid for itself."""

    owed: float = 0.0
    earned: float = 0.0
    """What drafts saved in all, less the reading."""

    def repay(self, saved: float) -> float:
        """A pass saved (or lost) so much; returns what is left for the account."""
        self.earned += saved
        if saved <= 0.0 or not self.owed:
            return saved
        paid = min(self.owed, saved)
        self.owed -= paid
        return saved - paid


@dataclass(slots=True)
class Investment:
    """What a drafter reads: a loan for the request of each slot."""

    patience: float = 1.0
    """How many times over an investment must promise to pay; half as much again with each one that failed."""
    _loans: dict[int, Loan] = field(default_factory=dict)
    """By slot."""

    def invest(self, slot: int, seconds: float) -> None:
        """Reading for that slot's request takes so long and is to be paid back."""
        loan = self._loan(slot)
        loan.owed += seconds
        loan.earned -= seconds

    def repay(self, slots: Sequence[int], saved: float) -> float:
        """A pass of these slots saved (or lost) so much, each an equal share; returns what is left for the account."""
        return sum(self._loan(slot).repay(saved / len(slots)) for slot in slots)

    def close(self, slot: int) -> float:
        """The request of that slot is over; returns what was not paid back."""
        loan = self._loans.pop(slot, Loan())
        if loan.earned < 0.0:
            self.patience = min(1024.0, 1.5 * self.patience)
        elif loan.earned > 0.0:
            self.patience = max(1.0, self.patience / 2.0)
        return loan.owed

    def _loan(self, slot: int) -> Loan:
        return self._loans.setdefault(slot, Loan())
