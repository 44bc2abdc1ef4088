"""Makes native/gpu/ptx.h of native/gpu/cuda.cu: `python packaging/ptx.py [NVCC]`.

It needs nvcc 13.0, of a CUDA toolkit or of the wheels nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm (13.0.88) and
nvidia-cuda-runtime (13.0.96). Other versions write other code. tests/native/gpu/test_ptx.py says when the header is out
of date.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GPU = Path(__file__).resolve().parents[1] / "native" / "gpu"
RELEASE = "13.0"
"""Of nvcc; the one that wrote ptx.h."""
FLAGS = ["-ptx", "-arch=compute_75", "-O3", "-fmad=false"]
"""compute_75 is the oldest of nvcc 13.0; drivers compile PTX for every later GPU. No FMA: same bits as on the host."""
VERSION = "6.3"
"""Of the PTX: the first with sm_75. nvcc 13.0 writes 9.0, which only drivers from 580 on take, and uses none of it."""
WIDTH = 116
"""Characters of the text in a line of the header."""
HEAD = """\
/* Made by packaging/ptx.py of cuda.cu and kernel.h with nvcc {release}: do not edit. The kernel for drivers of CUDA. */
#ifndef LS_PTX_H
#define LS_PTX_H

static const char ls_ptx[] =
"""


def find_nvcc(wish: str = "nvcc") -> str | None:
    """nvcc, if it is here and of the release that is wanted."""
    path = shutil.which(wish)
    if path is None:
        return None
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return path if f"release {RELEASE}," in said else None


def make_ptx(nvcc: str) -> str:
    """The PTX of cuda.cu, without comments and empty lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        subprocess.run([nvcc, *FLAGS, str(GPU / "cuda.cu"), "-o", str(path)], check=True)
        text = path.read_text(encoding="ascii")
    text = re.sub(r"^\.version .*", f".version {VERSION}", re.sub(r"//.*", "", text), flags=re.M)
    lines = (re.sub(r"[ \t]+", " ", line).strip().replace(", ", ",") for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def make_header(ptx: str) -> str:
    """The text as a C string; no literal is longer than compilers take."""
    pieces, start = [], 0
    escaped = ptx.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    while start < len(escaped):
        end = start + WIDTH
        if escaped[start:end].endswith("\\") and end < len(escaped):
            end -= 1
        pieces.append(f'"{escaped[start:end]}"')
        start = end
    return HEAD.format(release=RELEASE) + "\n".join(pieces) + ";\n\n#endif\n"


def main() -> int:
    """Writes the header anew; its exit code."""
    nvcc = find_nvcc(*sys.argv[1:2])
    if nvcc is None:
        print(f"This needs nvcc {RELEASE}; say where it is: python packaging/ptx.py NVCC", file=sys.stderr)
        return 1
    (GPU / "ptx.h").write_text(make_header(make_ptx(nvcc)), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
