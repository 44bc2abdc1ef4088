"""Trained heads by file: which method's module reads one, and those that go with a target."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec.config import EngineSettings
from localspec.drafters.heads.head import Head, runs
from localspec.drafters.setup import code_of
from localspec.engine.interfaces import Drafter, DraftRequest, History, Request
from localspec.errors import DecodeError, LocalspecError, ModelError, UsageError
from localspec.gguf import Header, read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import SHOWS_LAYERS, SHOWS_NEXTN
from localspec.llama.model import file_sha256
from localspec.methods import HEADS, OF_ITS_OWN
from localspec.models.facts import heads as formats
from localspec.models.facts.heads import DraftKind, nextn_layers
from localspec.models.facts.shape import HeadShape, head_shape
from localspec.types import Feed, Noise, SamplingParams

_LOG = logging.getLogger("localspec")


def kind_of(path: Path) -> DraftKind:
    return formats.checkpoint_kind(path) if formats.is_checkpoint(path) else formats.draft_kind(read_header(path))


def is_head(path: Path) -> bool:
    """Whether a draft must be read by a method's own module; False for a draft model, and for what cannot be read."""
    try:
        return kind_of(path).method != "draft"
    except LocalspecError:
        return False


def apart(draft: Path | None, heads: Sequence[Path]) -> tuple[Path | None, tuple[Path, ...]]:
    """The draft model, and the heads; what was given as a draft and is a head goes to those."""
    if draft is None or not is_head(draft):
        return draft, tuple(heads)
    return None, (draft, *(one for one in heads if one != draft))


def find(path: Path, target: Header) -> Head:
    """The head in a file, read by its method's module from headers alone."""
    head: Head = code_of(_method(path))(path, target)
    meant = formats.trained_for(path)
    if meant and meant != (found := file_sha256(target.path)):
        _LOG.warning(
            "%s was trained for another file (sha256 %s...) than %s (%s...): it may be right less often.",
            path.name, meant[:12], target.path.name, found[:12],
        )  # fmt: skip
    return head


def find_all(settings: EngineSettings, target: Header) -> list[Head]:
    """The heads that settings name, and multi-token prediction where the target's own file has it and it may guess.
    Raises UsageError: two of one method, or the drafter's is missing; PairError, ModelFileError: as `find`."""
    found: dict[str, Head] = {}
    for path in settings.heads:
        head = find(path, target)
        if head.name in found:
            first = found[head.name].path.name
            raise UsageError(f"{first} and {path.name} are both drafters called {head.name}.", "Give one of them.")
        found[head.name] = head
    if OF_ITS_OWN not in found and may_predict(settings.drafter) and nextn_layers(target):
        try:
            found[OF_ITS_OWN] = code_of(OF_ITS_OWN)(target.path, target)
        except LocalspecError as error:
            if settings.drafter == OF_ITS_OWN:
                raise
            _LOG.info("%s", error)
    if settings.drafter in HEADS and settings.drafter not in found:
        raise missing(settings.drafter)
    return list(found.values())


def out_of_reach(target: Sequence[Header], head: Sequence[Header]) -> str:
    """Why llama.cpp cannot run a head on a target, by the headers of all their files alone (the target's own, for
    multi-token prediction inside it): a clause; "" = nothing is known."""
    kind, layers = head[0].architecture, nextn_layers(head)
    if layers and not (runs(kind, layers) and kind in SHOWS_NEXTN):
        return f"llama.cpp cannot draft with {layers} multi-token-prediction layers of the architecture {kind}"
    if head[0].array(f"{kind}.target_layers") and target[0].architecture not in SHOWS_LAYERS:
        return f"llama.cpp does not show what goes into layers of the architecture {target[0].architecture}"
    return ""


def may_have(method: str, settings: EngineSettings) -> bool:
    """Whether one of the files that settings name could hold a head of this method."""
    if method in [_method(path) for path in settings.heads]:
        return True
    return method == OF_ITS_OWN and nextn_layers(read_header(settings.target)) > 0


def missing(method: str) -> UsageError:
    """The error for a drafter that was asked for while its head is missing."""
    return UsageError(f"The drafter `{method}` needs a head trained for the target.", "Give its file with --head PATH.")


def is_asked_for(head: Head, settings: EngineSettings) -> bool:
    """False for one that merely came with the target's own file: if it fails, answers go on without it."""
    return head.path in settings.heads or head.name == settings.drafter


def attach(head: Head, target: Context, settings: EngineSettings) -> Drafter | None:
    """The drafter of a head; None if it cannot be made and came with the target's own file, unasked. Raises
    LocalspecError: a head that was asked for cannot be loaded."""
    try:
        try:
            return head.attach(target, settings.branches)
        except MemoryError:
            fault = f"There is no memory for {head.path.name}, which drafts as {head.name}."
            raise ModelError(fault, "A shorter context needs less memory.") from None
    except LocalspecError as error:
        if is_asked_for(head, settings):
            raise
        _LOG.warning("%s Answers go on without %s.", error, head.name)
        return None


def displace(drafters: Sequence[Drafter], target: Context, slots: Sequence[int]) -> dict[str, str]:
    """Has drafters guess after three tokens of no meaning in slots, so that no cache of theirs holds another text;
    returns {name of one that failed: why}."""
    failed: dict[str, str] = {}
    if not drafters:
        return failed
    history = History(range(3))
    asked = Request(history.tokens, sampling=SamplingParams(temperature=0.0))
    read = any(drafter.name in HEADS for drafter in drafters)  # they read what the target thought of the text
    for slot in slots:
        if read:
            target.decode([Feed(slot, history.tokens[:2], 1)])
        request = DraftRequest(slot, history, 1, 1, asked, Noise(0))
        for drafter in drafters:
            try:
                drafter.draft([request])
            except (DecodeError, MemoryError) as error:
                failed[drafter.name] = str(error) or "out of memory"
    return failed


def identity(head: Head) -> list[Any]:
    """Facts that tell a head from others, for what is remembered of it: method, and size and time of change of its
    files."""
    path = head.path
    files = formats.weights_of(path) if path.is_dir() else [path]
    return [head.name, *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files)]


def shapes(target: Header, paths: Sequence[Path]) -> tuple[HeadShape, ...]:
    return tuple(head_shape(path, kind_of(path).method, target) for path in paths)


def may_predict(drafter: str) -> bool:
    """Whether multi-token prediction in the target's own file is loaded for a drafter of this name."""
    return drafter in ("auto", OF_ITS_OWN)


def _method(path: Path) -> str:
    """Which method's head a file is; a whole model's MTP layers may be another one's, too."""
    kind = kind_of(path)
    if kind.method == "draft":
        if nextn_layers(read_header(path)):
            return OF_ITS_OWN
        raise UsageError(f"{path.name} is a whole model, not a head.", "Give it with --draft.")
    formats.check_supported(path, kind)
    return kind.method
