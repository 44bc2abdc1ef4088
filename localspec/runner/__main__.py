"""`python -m localspec.runner FD PARENT`: the child process. Only `localspec.runner.process` starts it."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

from localspec.runner.runner import Runner, live_with

if __name__ == "__main__":
    descriptor, parent = map(int, sys.argv[1:3])
    live_with(parent)
    os.set_inheritable(descriptor, False)
    Runner(Connection(descriptor)).serve()
