"""Models by name: loaded when one is asked for, one at a time, and closed when idle or when memory is needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Protocol, cast

from localspec import paths
from localspec.config import PLANNED, EngineSettings
from localspec.drafters.heads.head import apart, may_predict, shapes
from localspec.errors import Cancelled, NoRoomError, UsageError
from localspec.gguf import ROLLS_BACK, read_parts
from localspec.llama.exact.choice import Progress
from localspec.machine import Place
from localspec.models.installed import installed
from localspec.models.installed.catalog import DEFAULT_PAIR
from localspec.models.memory.fit import FitSettings, plan
from localspec.processes import announce
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.loading import check_drafter
from localspec.runtime.memory import places, settle

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine


@dataclass(frozen=True, slots=True)
class Files:
    target: Path
    draft: Path | None
    heads: tuple[Path, ...] = ()


class LoadedModel(Protocol):
    """A model in memory, with what drafts for it: an engine, or a process that has one."""

    @property
    def facts(self) -> ModelFacts | None:
        """None = it is not there yet."""

    @property
    def outdated(self) -> str:
        """Why it should be closed and loaded again; "" = it need not."""

    def close(self) -> object:
        """Ends what runs, and frees the memory."""


Make = Callable[[str, Files, dict[str, Any], Progress], LoadedModel]
"""(name, files, settings, progress) -> a model in memory; settings are arguments of `Engine.load`."""


@dataclass(slots=True)
class _Held:
    model: LoadedModel
    users: int = 0
    used: float = 0.0  # monotonic() when the last user left
    withdraw: Callable[[], None] = field(default=lambda: None)  # other programs are not told of it any more


SLOTS = 4  # requests at once per model, unless the settings say so


@dataclass(eq=False)
class Lease:
    """The right to use a model: it is not closed before `release`."""

    pool: Pool | None  # None = the caller closes the model
    name: str
    model: LoadedModel

    @property
    def engine(self) -> Engine:
        """The model, which is in this process."""
        return cast("Engine", self.model)

    def release(self) -> None:
        """Gives the right back; a second call does nothing."""
        pool, self.pool = self.pool, None
        if pool is None:
            return
        with pool._lock:
            held = pool._held.get(self.name)
            if held is not None:  # the pool may have been closed meanwhile
                held.users -= 1
                held.used = monotonic()


class Pool:
    """The installed models. Thread-safe. Only names are taken, never paths: who asks may be a stranger."""

    def __init__(
        self,
        name: str | None = None,
        draft: str | None = None,
        *,
        heads: Sequence[str | Path] = (),
        settings: dict[str, Any] | None = None,
        idle_unload: float | None = None,
        room: Callable[[], list[Place]] = places,
        make: Make | None = None,
        called: str | None = None,
        announced: bool = True,
    ) -> None:
        """Raises UsageError: `idle_unload` is negative, or a setting has an impossible value.

        Args:
            name: the default: an installed pair or model, or a GGUF file; None = the bundled pair.
            draft, heads: of the default; `draft` overrides the pair's.
            settings: arguments of `Engine.load` for every engine. Without "slots" each has as many as suit its model.
            idle_unload: seconds without a user after which `unload_idle` closes an engine; None = never.
            room: says how much memory is free where.
            make: brings one into memory; None = into that of this process.
            called: name of the default; None = as `name` says, a file by its stem.
            announced: other programs are told of what is in memory.
        """
        if idle_unload is not None and idle_unload < 0:
            raise UsageError(f"idle_unload is {idle_unload}; it must be 0 or more seconds.")
        target, pair_draft = installed.find(name)
        own_draft = pair_draft if draft is None else installed.find_one(draft)
        self._own = Files(target, *apart(own_draft, [installed.find_one(head) for head in heads]))
        fields = {name: value for name, value in (settings or {}).items() if name != "tuned"}
        check_drafter(EngineSettings(self._own.target, self._own.draft, self._own.heads, **fields))  # before a wait
        self.default = called or (DEFAULT_PAIR if name is None else name)
        if not called and name is not None and (os.sep in name or name.endswith(".gguf")):
            self.default = paths.shown(Path(name).stem)
        self.started = time()
        self.idle_unload = idle_unload
        self._settings = dict(settings or {})
        self._room, self._make, self._announced = room, make or _loaded, announced
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()  # of what is held
        self._loading = threading.Lock()  # one model is loaded or closed at a time
        self._closing = False

    def names(self) -> dict[str, int]:
        """Every model that may be asked for, the default first, and since when it is there, in seconds since 1970."""
        found = {self.default: 0.0} | installed.usable()
        return {name: int(added or self.started) for name, added in found.items()}

    def loaded(self) -> dict[str, LoadedModel]:
        with self._lock:
            return {name: held.model for name, held in self._held.items()}

    def facts(self) -> dict[str, ModelFacts]:
        return {name: facts for name, model in self.loaded().items() if (facts := model.facts) is not None}

    def files(self, name: str) -> Files:
        if name == self.default:
            return self._own
        target, draft = installed.find(name)
        return Files(target, *apart(draft, ()))

    def leaves_in(self, name: str) -> float | None:
        """Seconds until `unload_idle` closes a model that no request asks for; None = it stays in memory."""
        with self._lock:
            held = self._held.get(name)
            if held is None or self.idle_unload is None:
                return None
            idle = 0.0 if held.users else monotonic() - held.used
        return max(0.0, self.idle_unload - idle)

    def lease_loaded(self, name: str) -> Lease | None:
        """A lease on a model that is in memory; None = it is not, or should be loaded again."""
        with self._lock:
            held = self._held.get(name)
            if held is None or (held.model.outdated and not held.users):
                return None
            held.users += 1
            return Lease(self, name, held.model)

    def lease(self, name: str, progress: Progress | None = None) -> Lease:
        """A lease, after loading the model if need be; waits while another is loaded. Raises Cancelled: it was
        closed."""
        with self._loading:
            if self._closing:
                raise Cancelled("The server is ending.")
            self._unload([other for other, model in self.loaded().items() if model.outdated])
            lease = self.lease_loaded(name)
            if lease is not None:
                return lease

            def report(what: str, share: float) -> None:
                if self._closing:
                    raise Cancelled("The server is ending.")
                if progress is not None:
                    progress(what, share)

            files = self.files(name)
            self._make_room(name, files)
            model = self._make(name, files, self.settings_of(files), report)
            held = _Held(model, users=1)
            if self._announced and (facts := model.facts) is not None:
                held.withdraw = announce("serve", files.target, files.draft, facts.context)
            with self._lock:
                self._held[name] = held
            return Lease(self, name, model)

    def unload_idle(self) -> list[str]:
        """Closes models that were not used for `idle_unload` seconds; returns their names."""
        if self.idle_unload is None:
            return []
        with self._loading:
            with self._lock:
                due = [name for name, held in self._held.items() if monotonic() - held.used >= self.idle_unload]
            return self._unload(due)

    def unload(self, name: str) -> bool:
        """Closes a model that is in memory; False = it is in use, and stays."""
        with self._loading:
            return bool(self._unload([name]))

    def give_up(self) -> None:
        """Has loading give up at its next report; nothing is loaded any more. Waits for nothing."""
        self._closing = True

    def close(self) -> None:
        self.give_up()
        with self._loading, self._lock:
            held, self._held = self._held, {}
        for one in held.values():
            one.model.close()
            one.withdraw()

    def slots(self, files: Files | None = None) -> int:
        """Requests at once for a model; None = the default. Models with recurrent layers, and trees, draft in one slot
        only, so they get one unless the settings say so."""
        wanted = self._settings.get("slots")
        if wanted is not None:
            return int(wanted)
        header = read_parts((files or self._own).target)[0]
        alone = header.architecture in ROLLS_BACK or (self._settings.get("branches") or 1) > 1
        return 1 if alone else SLOTS

    def settings_of(self, files: Files) -> dict[str, Any]:
        return self._settings | {"slots": self.slots(files)}

    def _make_room(self, name: str, files: Files) -> None:
        """Closes idle engines, the longest unused first, until the memory plan of a model fits. The default is loaded
        alone whatever the plan says: it was asked for by name where the server was started."""
        while self.loaded() or name != self.default:
            target, draft = read_parts(files.target), None if files.draft is None else read_parts(files.draft)
            taken = (*PLANNED, "gpu_layers", "draft_gpu_layers")
            wanted = {key: self._settings[key] for key in taken if self._settings.get(key) is not None}
            wanted |= {"slots": self.slots(files), "heads": shapes(target[0], files.heads)}
            wanted["nextn"] = may_predict(self._settings.get("drafter", "auto"))
            if (found := plan(target, draft, FitSettings(**wanted), self._room())).fits:
                return
            with self._lock:
                idle = [(held.used, other) for other, held in self._held.items() if not held.users]
            if idle:
                self._unload([min(idle)[1]])
            else:
                hint = "Try again when the other models are not in use." if self.loaded() else ""
                raise NoRoomError(f"{name} does not fit memory now: {found.sentence()}", hint)

    def _unload(self, names: Sequence[str]) -> list[str]:
        """Closes those of these models that are not used; returns their names. The caller holds `_loading`."""
        with self._lock:
            idle = [name for name in names if not self._held[name].users]
            closing = [self._held.pop(name) for name in idle]
        for held in closing:
            held.model.close()
            held.withdraw()
        return idle


def _loaded(name: str, files: Files, settings: dict[str, Any], progress: Progress) -> Engine:
    from localspec.runtime.engine import Engine

    engine = Engine.load(files.target, files.draft, heads=files.heads, progress=progress, **settings)
    settle()
    engine.work_when_idle()
    return engine
