"""Whether a newer localspec is out: asked of PyPI once, only when the user asks."""

from __future__ import annotations

import re

from localspec import __version__
from localspec.checks.finding import Finding

ADDRESS = "https://pypi.org/pypi/localspec/json"
"""PyPI's JSON about a project; `info.version` is its newest release."""
SECONDS = 3.0
"""Longest wait for a connection, and for each piece of the answer, in seconds."""


def examine_updates(address: str = ADDRESS, installed: str = __version__) -> Finding:
    """Asks PyPI for the newest release. Nothing is sent but the request for the page.

    Args:
        address: of PyPI's JSON about localspec.
        installed: version to compare with.
    """
    import httpx2 as httpx  # 60 ms, not needed for other findings

    try:
        answer = httpx.get(address, timeout=SECONDS, follow_redirects=True)
        answer.raise_for_status()
        newest = str(answer.json()["info"]["version"])
    except httpx.HTTPStatusError as error:
        return Finding("updates", f"not known: PyPI answered {error.response.status_code}")
    except httpx.TimeoutException:
        return Finding("updates", f"not known: PyPI did not answer within {SECONDS:.0f} seconds")
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return Finding("updates", f"not known: {error!r}")
    if _numbers(newest) > _numbers(installed):
        command = "pip install --upgrade localspec"
        return Finding("updates", f"{newest} is out, {installed} is installed", "A newer release is out.", command)
    return Finding("updates", f"none: {installed} is installed, and the newest release is {newest}")


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: (0, 2, 1) of "0.2.1.dev3"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(one) for one in found[0].split(".")) if found else ()
