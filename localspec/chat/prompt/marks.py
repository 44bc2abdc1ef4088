"""Which spellings of special tokens are text where people, tools and models wrote them, and how they are sealed.

What a chat template writes may be special tokens; what it is given to write is text. A *mark* is the spelling of a
control token, or of a user-defined one that has bars or that the template or localspec writes: `<|im_end|>`, `[INST]`,
`<tool_call>`. In what a model said before, its own marks of thoughts stay tokens, and so do user-defined ones of its
calls: an answer's text can hold them, templates look for them, and the model sees its earlier turn as it wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from localspec.chat.prompt.sealed import BREAK, Sealed
from localspec.chat.reply.forms import TAGGED, form_of
from localspec.chat.reply.harmony import HARMONY
from localspec.chat.reply.reply import THOUGHTS
from localspec.llama.special_tokens import SpecialToken, Spellings, encodable

_RESULTS = ("<tool_response>", "</tool_response>", "<tool_result>", "</tool_result>")
"""Marks that localspec writes where a template does not know tools, besides those of calls."""
_BRACKETED = re.compile(r"[<\[].+[>\]]", re.DOTALL)
_OPENS = re.compile(r"['\"]|\s*\{[{%]")
"""After what a template writes before something it is given."""
_NAMED = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"|\.\s*(\w+)")
"""Texts that a template compares, and keys that it looks up."""


class Marks:
    """The marks of one vocabulary under one chat template. Thread-safe; `marks_of` keeps the last ones."""

    def __init__(self, specials: Iterable[SpecialToken], source: str) -> None:
        """`specials`: of the vocabulary; those of a single character count as text. `source`: the chat template."""
        form = form_of(source)
        used = [THOUGHTS[0], *(one for one in THOUGHTS if one.opening in source or one.closing in source)]
        thoughts = {text for thought in used for text in (thought.opening, thought.closing)}
        calls = {*TAGGED.markers, *(form.markers if form is not None and form is not HARMONY else ())}
        written = {*thoughts, *calls, *_RESULTS}
        control = {special.text for special in specials if special.control and len(special.text) > 1}
        defined = {special.text for special in specials if not special.control and _BRACKETED.fullmatch(special.text)}
        defined = {text for text in defined if "|" in text or text in source or text in written}
        own = thoughts | (calls & defined)
        self._all = _Seal(control | defined, source)
        self._foreign = _Seal((control | defined) - own, source)
        self._own = re.compile(f"({'|'.join(map(re.escape, sorted(own, key=len, reverse=True)))})")

    def sealed(self, text: str, *, by_model: bool = False) -> Sealed:
        """The text, its marks broken by a character each; one that is sealed stays as it is."""
        if isinstance(text, Sealed):
            return text
        if not by_model:
            return Sealed(self._all.put(text))
        pieces = self._own.split(text)
        return Sealed("".join(piece if at % 2 else self._foreign.put(piece) for at, piece in enumerate(pieces)))

    def sealed_in(self, value: Any, *, by_model: bool = False) -> Any:
        """The same in all texts of lists and mappings, keys included."""
        if isinstance(value, str):
            return self.sealed(value, by_model=by_model)
        if isinstance(value, list | tuple):
            return [self.sealed_in(one, by_model=by_model) for one in value]
        if isinstance(value, Mapping):
            seal = partial(self.sealed_in, by_model=by_model)
            return {seal(key): seal(one) for key, one in value.items()}
        return value


class _Seal:
    """Puts `BREAK` into spellings of some marks, and where a part of one could become a whole one."""

    def __init__(self, marks: set[str], source: str) -> None:
        self._spellings = Spellings(marks)
        self._longest = max(map(len, marks), default=0)
        self._begun = frozenset(mark[:end] for mark in marks for end in range(1, len(mark)))
        left_open = set()  # beginnings of marks that the template writes before what it is given
        for match in _OPENS.finditer(source):
            tail = source[max(0, match.start() - self._longest) : match.start()]
            left_open |= {tail[at:] for at in range(len(tail)) if tail[at:] in self._begun}
        rests = {mark[len(start) :] for start in left_open for mark in marks if mark.startswith(start)}
        self._rests = frozenset(rests)
        self._rests_begun = frozenset(rest[:end] for rest in rests for end in range(1, len(rest) + 1))
        self._named = frozenset(text for found in _NAMED.findall(source) for text in found) if rests else frozenset()

    def put(self, text: str) -> str:
        """The text with the character at its places, and doubled where it stood."""
        shown = encodable(text)
        places = {start + 1 for start, _ in self._spellings.places(shown)}
        body = shown.rstrip()
        if any(body[-length:] in self._begun for length in range(1, min(len(body), self._longest) + 1)):
            places.add(len(body))
        bare = shown.strip()
        if (
            self._rests
            and bare not in self._named
            and (bare in self._rests_begun or any(bare[:end] in self._rests for end in range(1, self._longest)))
        ):  # it may be the rest of a mark that the template has begun
            places.add(len(shown) - len(shown.lstrip()))
        edges = [0, *sorted(places), len(text)]
        return BREAK.join(text[start:end].replace(BREAK, 2 * BREAK) for start, end in pairwise(edges))


marks_of = lru_cache(maxsize=4)(Marks)
"""The marks of a model's vocabulary under its template; `specials` is a tuple."""
