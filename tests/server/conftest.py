"""One engine for all tests of the endpoint, and one server on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.runtime.pool import Pool
from tests.server.held import eventually
from tests.server.live import Live, engine_of, running

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


@pytest.fixture
def always_looked_up(pool: Pool) -> Iterator[None]:
    """Prompt lookup drafts whatever it finds, whether it pays on this machine at this moment or not."""
    pool.lease(pool.default).release()
    engine = engine_of(pool)
    exact = engine.loaded.context.exact_widths
    if exact is not None and 2 not in exact:
        pytest.skip("no pass with a draft is exact here")
    before = engine.settings
    assert eventually(lambda: not engine.busy)  # answers that an earlier test left are ending
    engine.configure(drafter="lookup", max_draft_tokens=3)
    yield
    assert eventually(lambda: not engine.busy)
    engine.configure(drafter=before.drafter, max_draft_tokens=before.max_draft_tokens)
