"""Makes native/gpu/metal_source.h of kernel.metal, kernel.h and request.h: `python packaging/metal.py`.

A Mac compiles that text at run time. tests/native/gpu/test_metal.py says when the header is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

GPU = Path(__file__).resolve().parents[1] / "native" / "gpu"
HEAD = """\
/* Made by packaging/metal.py of kernel.metal, kernel.h and request.h: do not edit. The kernel for Metal. */
#ifndef LS_METAL_SOURCE_H
#define LS_METAL_SOURCE_H

static const char ls_metal_source[] =
"""


def make_source(name: str = "kernel.metal") -> str:
    """The file's text with those of its own #include lines put in place of them, without comments that begin a line.

    The notice of the logarithm's authors stays.
    """
    text = re.sub(r"^//.*\n", "", (GPU / name).read_text(encoding="utf-8"), flags=re.M)
    text = re.sub(r"^/\*(?:(?!\*/|Copyright)[\s\S])*\*/\n", "", text, flags=re.M)
    return re.sub(r'^#include "(.*)"\n', lambda found: make_source(found[1]), text, flags=re.M)


def make_header() -> str:
    """The text as a C string, a literal for each line."""
    lines = (line.replace("\\", "\\\\").replace('"', '\\"') for line in make_source().splitlines() if line)
    return HEAD + "\n".join(f'"{line}\\n"' for line in lines) + ";\n\n#endif\n"


def main() -> int:
    """Writes the header anew; its exit code."""
    (GPU / "metal_source.h").write_text(make_header(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
