"""The kernel's float32 noise against C's double: the slack of the kernel's limit rests on its largest error, 3e-6."""

from __future__ import annotations

import pytest

from .host import Host

LARGEST_ERROR = 3e-6
"""What `lowered` in native/gpu/kernel.h counts with; no unit."""
BLOCK = 1 << 20
"""Words of one call."""


def test_both_ends_and_the_middle(host: Host) -> None:
    """Errors are largest where noise is: at the last words; the formula changes in the middle."""
    firsts = [0, 2**31 - BLOCK, 2**31, 2**32 - BLOCK]
    assert max(host.gumbel_error(first) for first in firsts) <= LARGEST_ERROR


@pytest.mark.trial
@pytest.mark.parametrize("part", range(8))
def test_every_word(host: Host, part: int) -> None:
    """All 2^32 in eight parts: half a minute each."""
    assert max(host.gumbel_error(first) for first in range(part << 29, (part + 1) << 29, BLOCK)) <= LARGEST_ERROR
