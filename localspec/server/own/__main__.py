"""`python -m localspec.server.own`: the process of one model. Only `localspec.runner.child` starts it."""

from __future__ import annotations

import gc
import json
import sys

from localspec.errors import LocalspecError, told


def main() -> int:
    """The process, from its start to its end."""
    gc.disable()  # until the models are loaded (`memory.settle`): what imports make is no garbage
    try:
        from localspec.server.own.process import run
    except LocalspecError as error:  # a library is missing
        sys.stdout.write(json.dumps({"failed": told(error)}) + "\n")
        return error.exit_code
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
