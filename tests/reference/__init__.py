"""The kernels in numpy: the specification of native/.

Every number is made by the same IEEE double operations in the same order as in C, so both give the same bits:
`log` and `exp` are fixed polynomials without FMA (native/real.h), sums run over 8 interleaved lanes that are added
as ((0+4) + (2+6)) + ((1+5) + (3+7)), cumulative sums run front to back, and order is by logit, then by lower id.

Sources: Philox, Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2, 3"); Gumbel-max coupling, Daliri, Musco
and Suresh 2024; rejection, Leviathan et al. 2023 and Chen et al. 2023; block, Sun et al. 2024 (arXiv 2403.10444);
log, FreeBSD's e_log.c; sampling steps, llama.cpp's llama-sampler.cpp. The functions are described in localspec/native/.
"""

from __future__ import annotations

from tests.reference.counts import ContextCounts
from tests.reference.matrix import matvec
from tests.reference.ngrams import NgramIndex
from tests.reference.numbers import exp, gumbel, lane_sum, log, philox4x32_10, uniform
from tests.reference.rows import Support, distribution, log_probs, patched, sample, top_log_probs
from tests.reference.suffix import SuffixIndex
from tests.reference.verdict import Walk, verify

__all__ = [
    "ContextCounts",
    "NgramIndex",
    "SuffixIndex",
    "Support",
    "Walk",
    "distribution",
    "exp",
    "gumbel",
    "lane_sum",
    "log",
    "log_probs",
    "matvec",
    "patched",
    "philox4x32_10",
    "sample",
    "top_log_probs",
    "uniform",
    "verify",
]
