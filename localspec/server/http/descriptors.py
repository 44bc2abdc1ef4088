"""How many files this process may have open, and so how many connections there may be."""

from __future__ import annotations

OWN = 64
"""Open files besides connections: models, their processes, logs, what a route opens. A choice."""
_MOST = 65_536
"""As many as the limit is raised to; more connections than that are no use here. A choice."""


def raised() -> int | None:
    """Raises the soft limit of open files as far as it goes, and returns it; None = this system has none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS allows less than it says
            return soft
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


def accepted_at_once(limit: int | None) -> int:
    """Connections that may be taken before one of them is looked at."""
    return 512 if limit is None else max(16, min(512, (limit - OWN) // 8))


def most_connections(limit: int | None) -> int | None:
    """Connections that leave room for what else is opened; None = any number."""
    return None if limit is None else max(16, limit - OWN - 2 * accepted_at_once(limit))
