"""Checks of this machine, which every face may call; `use`, `parts` and `layers` look where the models are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.checks.doctor import Remark
    from localspec.runtime.engine import Engine

ASPECTS = ("threads", "kernels", "cache", "ngram", "length")
"""What `tune` tries, in this order; here, since a help text names them and must load nothing heavy."""


def use(context_use: int, engine: Engine) -> list[Remark]:
    """What the models in use leave on the table; see `doctor.examine_use`."""
    from localspec.checks.doctor import examine_use

    return list(examine_use(engine, context_use))


def parts(engine: Engine) -> list[Remark]:
    """Files, exactness and what passes cost; see `doctor.examine_engine`."""
    from localspec.checks.doctor import examine_engine

    return list(examine_engine(engine))


def layers(engine: Engine) -> tuple[str, ...]:
    """What of the models runs where, in words; nothing on a machine without a GPU."""
    from localspec.checks.doctor import examine_layers

    return tuple(one.value for one in examine_layers(engine.loaded))
