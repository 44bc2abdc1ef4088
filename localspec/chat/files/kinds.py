"""What a chat can be written as, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.chat.files.export import ChatExport, to_json, to_markdown


def _html(exports: Sequence[ChatExport]) -> str:
    from localspec.chat.files.page import to_html  # a Markdown parser, 20 ms

    return to_html(exports)


KINDS: dict[str, Callable[[Sequence[ChatExport]], str]] = {"markdown": to_markdown, "json": to_json, "html": _html}
"""Formats by name."""
