"""Sampling settings as a server is told them."""

from __future__ import annotations

import json
import math

from localspec.remote.answerer import Question
from localspec.types import SamplingParams


def test_every_setting_is_sent_as_json() -> None:
    sampling = SamplingParams(
        top_k=3, dry_sequence_breakers=("\n", "x"), logit_bias=((4, -math.inf), (5, 1.5), (6, -1e3))
    )
    body = json.loads(json.dumps(Question([], sampling).body("m"), allow_nan=False))
    assert body["logit_bias"] == {"4": -100.0, "5": 1.5, "6": -1000.0}
    assert (body["dry_sequence_breakers"], body["top_k"]) == (["\n", "x"], 3)
