"""What was read of a prompt when its client leaves is cached: the same prompt goes on from there."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.runtime.generation import Generation
from tests.real.published import ALL, Real, on

pytestmark = pytest.mark.trial

TEXT = "Maria bought twelve lanterns in Lisbon, and Peter sold three maps of Oslo to a baker who sang at night. "
TOKENS, CUTS = 1500, 10


@on(ALL)
def test_a_prompt_that_is_cut_at_ten_places_goes_on_from_each(real: Real) -> None:
    prompt = np.tile(real.engine.tokenize(TEXT), 100)[:TOKENS]

    def asked(place: int) -> tuple[Generation, int]:
        """The request, cancelled when `place` tokens are cached, and how many of them another one can use.

        It may have its answer before the cancellation comes. Of a whole prompt the last token is read again.
        """
        done = [0]

        def progress(now: int, total: int) -> None:
            done.append(now)
            if now >= place:
                generation.cancel()

        generation = real.engine.generate(prompt, seed=1, max_tokens=12, ignore_end=True, on_prefill=progress)
        generation.text()
        return generation, min(max(done[-1], generation.stats.reused_tokens), TOKENS - 1)

    real.engine.forget()
    expected, _ = asked(TOKENS)
    real.engine.forget()
    cached = 0
    for cut in range(1, CUTS + 1):
        generation, read = asked(cut * TOKENS // (CUTS + 1))
        assert generation.stats.reused_tokens == cached
        cached = read
    assert cached >= CUTS * TOKENS // (CUTS + 1)
    last, _ = asked(TOKENS)
    assert last.stats.reused_tokens == cached
    assert last.tokens == expected.tokens
