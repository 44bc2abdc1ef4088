"""Renders pictures of the chat to PNG: `python packaging/screenshots/render.py [FONT FOLDER]`; see README.md here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import resvg_py

HERE = Path(__file__).parent
SNAPSHOTS = HERE.parent.parent / "tests" / "tui" / "__snapshots__" / "test_pictures"
PICTURES = {"chat": "code", "origins": "origins", "race": "race", "models": "models"}
"""Name of the PNG: scene of the test."""
FONT = "DejaVu Sans Mono"
FONTS = "/usr/share/fonts/truetype/dejavu"
ZOOM = 1


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else FONTS)
    fonts = [str(path) for path in sorted(folder.glob("DejaVuSansMono*.ttf"))]
    if not fonts:
        sys.exit(f"There is no {FONT} in {folder}; name its folder.")
    for name, scene in PICTURES.items():
        (source,) = SNAPSHOTS.glob(f"test_picture*{scene}-colour*dark-120*.svg")
        svg = re.sub(r"@font-face\s*\{.*?\}", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
        svg = re.sub(r"font-family:[^;]*;", f"font-family: {FONT};", svg)
        data = bytes(resvg_py.svg_to_bytes(svg_string=svg, font_files=fonts, font_family=FONT, zoom=ZOOM))
        (HERE / f"{name}.png").write_bytes(data)
        print(f"{name}.png  {len(data):,} bytes")


if __name__ == "__main__":
    main()
