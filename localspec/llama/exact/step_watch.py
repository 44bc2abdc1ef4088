"""Whether our library really ran what a proof of exactness rests on: counted in the first pass of each width."""

from __future__ import annotations

import logging

from localspec.llama.exact import wide

_LOG = logging.getLogger("localspec")


class StepWatch:
    """Of one context that is exact by construction (see `exactness`)."""

    def __init__(self, expected: int) -> None:
        """`expected`: products and attentions of a pass that our library computes."""
        self._expected = expected
        self._counted: set[int] = set()
        self._before = 0

    def begin(self, rows: int) -> None:
        """A pass of so many rows begins, on this thread."""
        if rows not in self._counted:
            self._before = wide.steps()

    def lacks(self, rows: int) -> bool:
        """Whether that pass, the first of its width, left some of them to another backend; says so once."""
        if rows in self._counted:
            return False
        self._counted.add(rows)
        ran = wide.steps() - self._before
        if ran >= self._expected:
            return False
        _LOG.warning(
            "A pass of %d rows ran %d of %d products and attentions on localspec's kernels. "
            "Answers from now on are marked exact: no. Please report it.",
            rows,
            ran,
            self._expected,
        )
        return True
