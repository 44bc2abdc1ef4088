"""One engine for all tests of the endpoint, and one server on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.runtime.pool import Pool
from tests.server.live import Live, running

SLOTS = 4
CONTEXT = 1024


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The bundled pair, loaded once; exact whatever it costs here, so that texts can be compared on any machine."""
    pool = Pool(settings={"slots": SLOTS, "context": CONTEXT, "exact": "strict"})
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def live(pool: Pool) -> Iterator[Live]:
    """A server without a key."""
    with running(pool) as server:
        yield server
