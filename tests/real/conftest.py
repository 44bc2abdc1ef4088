"""A published model, loaded once for all tests that follow one another with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.runtime.pool import Pool
from tests.real.bare import Bare
from tests.real.published import Real, file_of
from tests.server.live import engine_of, running


@pytest.fixture(scope="session")
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    """The model that `published.on` names."""
    path = file_of(request.param)
    pool = Pool(str(path), settings={"slots": 1, "context": 2048, "exact": "strict"})
    try:
        with running(pool) as live:
            lease = pool.lease(pool.default)
            bare = Bare(path)
            yield Real(request.param, path, engine_of(pool), live, bare)
            bare.close()
            lease.release()
    finally:
        pool.close()
