"""`python -m localspec.server.own`: the process of one model. Only `localspec.runner.child` starts it."""

from __future__ import annotations

import gc


def main() -> int:
    """The process, from its start to its end."""
    gc.disable()  # until the models are loaded (`memory.settle`): what imports make is no garbage
    from localspec.server.own.process import run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
