"""What this machine is, and what of it this process may use: memory, CPUs, files in memory.

What only Linux says stands in files below a root, which tests plant. Elsewhere there are none.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def text_of(path: Path) -> str:
    """What a file of the system says; "" where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def groups(controller: str, root: Path) -> list[Path]:
    """Where limits may stand that Linux sets a container or a service: this process's control groups and all above
    them, of either version.

    Args:
        controller: name of what limits, such as "cpu".
        root: where the system's files are.
    """
    top = root / "sys/fs/cgroup"
    found = dict.fromkeys((top, top / controller))
    for line in text_of(root / "proc/self/cgroup").splitlines():
        names, _, path = line.partition(":")[2].partition(":")
        group = path.strip("/").split("/")
        if ".." in group or (names and controller not in names.split(",")):
            continue
        for mount in (top / names, top / controller) if names else (top,):
            found |= dict.fromkeys(mount.joinpath(*group[:depth]) for depth in range(len(group) + 1))
    return list(found)
