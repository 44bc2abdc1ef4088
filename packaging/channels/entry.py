"""What PyInstaller makes the program of: the command `localspec`, whose child processes are itself."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import MutableMapping

from localspec.cli import main


def leave_others_alone(environment: MutableMapping[str, str]) -> None:
    """Takes back the search path of libraries, which PyInstaller sets for this program: others that it starts, such as
    an editor or a coding agent, must find their own."""
    before = environment.pop("LD_LIBRARY_PATH_ORIG", None)
    environment.pop("LD_LIBRARY_PATH", None)
    if before is not None:
        environment["LD_LIBRARY_PATH"] = before


if __name__ == "__main__":
    leave_others_alone(os.environ)
    multiprocessing.freeze_support()
    raise SystemExit(main())
