"""How likely a draft node is to be accepted, given its parent was: learned per drafter, rule and temperature.

A drafter's confidence is any monotone score: a probability below 1, or a count from 1 on. Scores fall into bins; each
bin, and within it each depth, keeps decayed counts of trials and of nodes accepted, and a bin with few trials leans on
what is known of all depths and, without any, on a cautious guess. That is the `Table`, remembered across runs.

A `Tracker` is one request's view of a table. Contents differ, so it adds shifts in log-odds that follow the request's
own hits and misses (`shift`): one to nodes whose confidence is known, one to levels before anything is drafted. They
differ: a draft model that knows how unsure it is of this text is well calibrated and still not worth asking.

A draft is scored on the tokens that are emitted, whether it was sent or not: under *coupled* a node is accepted if and
only if it is the token the target says there. So a drafter that costs nothing is known without being sent (`shadow`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from localspec.engine.interfaces import Draft
from localspec.engine.shift import Kind, Shift

_BINS = 26
"""Ten of probabilities, then one for each whole number from 1 on."""
_DEPTHS = 8
_MEMORY = 400.0
"""Trials after which older ones fade."""
_PRIOR_WEIGHT = 6.0
_DEPTH_WEIGHT = 20.0
_POOLED = 0.25
"""What a trial at another temperature is worth."""
_ANY = "any"
"""Of all temperatures together, in a table's key."""
_UNKNOWN = 0.6
"""Acceptance of a node nobody knows anything about."""


SURE = 0.999
"""Highest confidence that is a chance: from 1 on it counts as the length of a match."""


def _bin_of(confidence: float) -> int:
    if confidence < 1.0:
        return int(10.0 * confidence) if confidence > 0.0 else 0
    return min(_BINS - 1, 9 + int(confidence))


_GUESSES = [0.15 + 0.75 * (place + 0.5) / 10.0 for place in range(10)]
"""What to think of a bin without trials."""
_GUESSES += [min(0.85, 0.3 + 0.08 * (place - 9)) for place in range(10, _BINS)]


def _class_of(temperature: float) -> str:
    if temperature <= 0.0:
        return "zero"
    return "low" if temperature <= 0.5 else "medium" if temperature < 0.95 else "high"


class Table:
    """What is known of one drafter under one rule at about one temperature."""

    def __init__(self, pool: Table | None = None) -> None:
        """
        Args:
            pool: the same at all temperatures; what is thought where little was seen at this one.
        """
        self._pool = pool
        self._tables = (self,) if pool is None else (pool, self)
        """The broadest first."""
        self._trials = [[0.0] * _BINS for _ in range(_DEPTHS + 1)]
        """[depth][bin]; depth 0 = all depths together."""
        self._hits = [[0.0] * _BINS for _ in range(_DEPTHS + 1)]
        self._depth_trials = [0.0] * (_DEPTHS + 1)
        self._depth_hits = [0.0] * (_DEPTHS + 1)
        self.breadth = 1.0
        """Nodes per level of a draft: 1 for chains."""
        self.nodes, self.levels = Kind(), Kind()
        """How the last requests differed from the counts."""
        self.calibration = Calibration()

    @property
    def trials(self) -> float:
        """Nodes scored, older ones faded; at other temperatures they count less."""
        return self._known(0)

    def probability(self, confidence: float, depth: int) -> float:
        """Of a node whose confidence is known."""
        place, depth = _bin_of(confidence), min(depth, _DEPTHS)
        chance = _GUESSES[place]
        for table in self._tables:
            trials, hits = table._trials, table._hits
            whole = (hits[0][place] + _PRIOR_WEIGHT * chance) / (trials[0][place] + _PRIOR_WEIGHT)
            chance = (hits[depth][place] + _DEPTH_WEIGHT * whole) / (trials[depth][place] + _DEPTH_WEIGHT)
        return chance

    def typical(self, depth: int) -> float:
        """Of a node of that depth before its confidence is known."""
        depth, chance = min(depth, _DEPTHS), _UNKNOWN
        for table in self._tables:
            trials, hits = table._depth_trials, table._depth_hits
            whole = (hits[0] + _PRIOR_WEIGHT * chance) / (trials[0] + _PRIOR_WEIGHT)
            chance = (hits[depth] + _DEPTH_WEIGHT * whole) / (trials[depth] + _DEPTH_WEIGHT)
        return chance

    def optimistic(self, depth: int, errors: float) -> float:
        """`typical`, were it so many standard errors higher."""
        chance = self.typical(depth)
        return chance + errors * math.sqrt(chance * (1.0 - chance) / (self._known(min(depth, _DEPTHS)) + _PRIOR_WEIGHT))

    def _known(self, depth: int) -> float:
        """Trials of that depth, at other temperatures with what they are worth here."""
        own = self._depth_trials[depth]
        elsewhere = 0.0 if self._pool is None else max(0.0, self._pool._depth_trials[depth] - own)
        return own + _POOLED * elsewhere

    def learn(self, confidence: float, depth: int, hit: bool) -> float:
        """One node was tried; returns what its `probability` was before."""
        usual = self.probability(confidence, depth)
        place, depth = _bin_of(confidence), min(depth, _DEPTHS)
        for table in self._tables:
            for row in (0, depth):
                _add(table._trials[row], table._hits[row], place, hit)
        return usual

    def saw_breadth(self, nodes_per_level: float) -> None:
        """A draft had so many nodes a level."""
        self.breadth += 0.05 * (nodes_per_level - self.breadth)

    def count_level(self, depth: int, hit: bool) -> None:
        """One level was tried: whether any of its siblings was accepted."""
        for table in self._tables:
            for row in (0, min(depth, _DEPTHS)):
                _add(table._depth_trials, table._depth_hits, row, hit)

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {
            "trials": self._trials,
            "hits": self._hits,
            "depth_trials": self._depth_trials,
            "depth_hits": self._depth_hits,
            "breadth": self.breadth,
        }

    @classmethod
    def from_json(cls, data: Any, pool: Table | None = None) -> Table:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError: not what `to_json` makes.
        """
        table = cls(pool)
        table._trials, table._hits = _grid(data["trials"]), _grid(data["hits"])
        table._depth_trials, table._depth_hits = (
            _counts(data[name], _DEPTHS + 1) for name in ("depth_trials", "depth_hits")
        )
        table.breadth = float(data["breadth"])
        pairs = zip([*table._trials, table._depth_trials], [*table._hits, table._depth_hits], strict=True)
        sound = all(0.0 <= hit <= trial for trials, hits in pairs for trial, hit in zip(trials, hits, strict=True))
        if not (sound and 1.0 <= table.breadth <= 8.0):
            raise ValueError("more hits than trials")
        return table


class Calibration:
    """Whether nodes called 70 % likely are accepted in 70 of 100: predictions made before the outcome was known."""

    def __init__(self) -> None:
        self.trials = 0
        self._squares = 0.0
        self._sums = [[0, 0.0, 0] for _ in range(10)]  # per tenth: predictions, their sum, hits

    def add(self, predicted: float, hit: bool) -> None:
        """One prediction and what came of it."""
        self.trials += 1
        self._squares += (predicted - hit) ** 2
        sums = self._sums[min(9, int(10.0 * predicted))]
        sums[0] += 1
        sums[1] += predicted
        sums[2] += hit

    @property
    def brier(self) -> float:
        """Mean squared error of the predictions; 0.25 is what "one half, always" gets."""
        return self._squares / self.trials if self.trials else 0.0

    @property
    def expected_error(self) -> float:
        """Expected calibration error over ten bins: how far predictions are from rates, on average."""
        return sum(abs(total - hits) for _, total, hits in self._sums) / self.trials if self.trials else 0.0


class Tracker:
    """A table as one request sees it."""

    __slots__ = ("_levels", "_nodes", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self._nodes, self._levels = Shift(table.nodes), Shift(table.levels)
        """Of nodes whose confidence is known, and of levels before anything is drafted."""

    def fade(self, share: float) -> None:
        """Nothing was heard for a while: this share of what was learned of the request does not hold any more."""
        self._nodes.fade(share)
        self._levels.fade(share)

    def close(self) -> None:
        """The request is over: the next one may be of its kind."""
        self._nodes.close()
        self._levels.close()

    def probability(self, confidence: float, depth: int) -> float:
        """That a node is accepted if its parent is."""
        return self._nodes.of(self.table.probability(confidence, depth))

    def typical(self, levels: int, hope: float = 0.0, off: float = 0.0) -> list[float]:
        """The same for each level of a chain, or for any sibling of a level, before anything is drafted.

        With `hope` it is so many standard errors better than that; with `off` for a request that differs by so many
        standard deviations from what is known of it.
        """
        if not hope:
            return [self._levels.of(self.table.typical(depth), off) for depth in range(1, levels + 1)]
        return [self._levels.of(chance, off) for chance in self.usual(levels, hope)]

    def usual(self, levels: int, hope: float) -> list[float]:
        """`typical` of all requests, not of this one."""
        return [min(0.98, self.table.optimistic(depth, hope)) for depth in range(1, levels + 1)]

    def gains(self, draft: Draft, again: float = 0.0) -> list[float]:
        """float[n + 1]: tokens the first m nodes are expected to bring, by m.

        Args:
            draft: chain or tree.
            again: tokens that decoding a row again costs: what is accepted beside the main chain (first child of first
                child) does not stay cached, and the next pass decodes it again.
        """
        confidence = [0.0] * len(draft) if draft.confidence is None else draft.confidence.tolist()
        left = [*[0.0] * len(draft), 1.0]  # per node, and for the root: it is reached, and no child so far was right
        depths: list[int] = []
        gains, total, main = [0.0], 0.0, -1
        for node, (parent, score) in enumerate(zip(draft.parents.tolist(), confidence, strict=True)):
            depth = 1 if parent < 0 else depths[parent] + 1
            chance = self.probability(score, depth) * left[parent]
            left[parent] -= chance
            left[node] = chance
            depths.append(depth)
            if parent == main:
                main = node
                total += chance
            else:
                total += chance * (1.0 - again)
            gains.append(total)
        return gains

    def score(self, draft: Draft, emitted: Sequence[int], levels: bool = True) -> int:
        """Learns from a draft and the tokens that were emitted from where it began; what lies behind is unknown.
        Returns how many of its levels were right.

        Args:
            draft: chain or tree.
            emitted: tokens.
            levels: learn what is `typical`, too. Nobody asks that of drafters without cost: they guess first.
        """
        tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
        confidence = [0.0] * len(tokens) if draft.confidence is None else draft.confidence.tolist()
        table, node = self.table, -1
        for depth, token in enumerate(emitted, 1):
            tried = hit = False
            for child in range(node + 1, len(tokens)):
                if parents[child] == node:
                    tried, hit = True, tokens[child] == token
                    usual = table.learn(confidence[child], depth, hit)
                    table.calibration.add(self._nodes.learn(usual, hit), hit)
                    if hit:
                        node = child
                        break
            if tried and levels:
                self._levels.learn(table.typical(depth), hit)
                table.count_level(depth, hit)
            if not hit:
                return depth - 1
        return len(emitted)


class Acceptance:
    """All tables of one target."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}

    def tracker(self, drafter: str, rule: str, temperature: float) -> Tracker:
        """A fresh view for a request."""
        pool = self._table(f"{drafter} {rule} {_ANY}")
        return Tracker(self._table(f"{drafter} {rule} {_class_of(temperature)}", pool))

    def _table(self, key: str, pool: Table | None = None) -> Table:
        if key not in self._tables:  # a table takes 20 us to make
            self._tables[key] = Table(pool)
        return self._tables[key]

    def report(self) -> dict[str, dict[str, float]]:
        """Per table: trials, Brier score, expected calibration error."""
        return {
            key: {
                "trials": table.calibration.trials,
                "brier": round(table.calibration.brier, 4),
                "expected_calibration_error": round(table.calibration.expected_error, 4),
            }
            for key, table in sorted(self._tables.items())
            if not key.endswith(_ANY)
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {key: table.to_json() for key, table in self._tables.items()}

    @classmethod
    def from_json(cls, data: Any) -> Acceptance:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: not what `to_json` makes.
        """
        found = cls()
        pools = {str(key): Table.from_json(table) for key, table in data.items() if key.endswith(_ANY)}
        found._tables = dict(pools)
        for key, table in data.items():
            if key not in pools:
                pool = found._table(f"{key.rsplit(' ', 1)[0]} {_ANY}")
                found._tables[str(key)] = Table.from_json(table, pool)
        return found


def _add(trials: list[float], hits: list[float], place: int, hit: bool) -> None:
    if trials[place] >= _MEMORY:
        trials[place] *= 1.0 - 1.0 / _MEMORY
        hits[place] *= 1.0 - 1.0 / _MEMORY
    trials[place] += 1.0
    hits[place] += hit


def _counts(data: Any, size: int) -> list[float]:
    counts = [float(value) for value in data]
    if len(counts) != size or not all(math.isfinite(count) for count in counts):
        raise ValueError("not counts")
    return counts


def _grid(data: Any) -> list[list[float]]:
    if len(data) != _DEPTHS + 1:
        raise ValueError("not a grid of counts")
    return [_counts(row, _BINS) for row in data]
