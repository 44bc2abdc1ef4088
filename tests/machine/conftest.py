"""A planted tree of the system's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Plant = Callable[[Mapping[str, str]], Path]
GROUPS = {
    "v2": "0::/system.slice/a.service\n",
    "v1": "3:memory:/a\n2:cpu,cpuacct:/system.slice/a.service\n1:name=x:/\n",
}
"""What /proc/self/cgroup says in each version."""


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Writes files below a root, which is returned; names of control groups begin with "cgroup/"."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name.replace("cgroup/", "sys/fs/cgroup/", 1)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return write
