"""What PyInstaller makes the program of: the command `localspec`, whose child processes are itself."""

from __future__ import annotations

import multiprocessing

from localspec.cli import main

if __name__ == "__main__":
    multiprocessing.freeze_support()
    raise SystemExit(main())
