"""Models in processes of their own, for a server's pool: started, and what they count."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from localspec.engine.request import FinishReason
from localspec.engine.stats import RequestStats
from localspec.llama.exact.choice import Progress
from localspec.remote.steps import figures_in
from localspec.runner.child import Child, Load
from localspec.runtime.pool import Files, Pool
from localspec.server.http.meter import Meter
from localspec.server.http.settings import ServerSettings


class Processes:
    """Of one server. `make` is for its `Pool`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._public = replace(
            settings, behind=True, host="127.0.0.1", ssl_cert=None, ssl_key=None, api_keys=(), cors_origins=()
        )
        self.meter: Meter | None = None
        """Where is counted; None = nothing is answered yet."""
        self._begun: tuple[Load, Child] | None = None

    def begin(self, pool: Pool) -> None:
        """Starts the process of the default model, for which `make` is about to be asked."""
        name = pool.default
        load = self._load(name, pool.files(name), pool.settings_of(pool.files(name)))
        self._begun = load, self._child(name, load)

    def give_up(self) -> None:
        """Ends what was begun and never asked for."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun[1].close(at_once=True)

    def make(self, name: str, files: Files, settings: dict[str, Any], progress: Progress) -> Child:
        """A process that has a model, once it answers.

        Raises:
            LocalspecError: it cannot be loaded, or the process is gone.
            Whatever `progress` raises.
        """
        load = self._load(name, files, settings)
        if self._begun is not None and self._begun[0] == load:
            child, self._begun = self._begun[1], None
        else:
            child = self._child(name, load)
        child.wait(progress)
        return child

    def _load(self, name: str, files: Files, settings: dict[str, Any]) -> Load:
        return Load.of(files.target, files.draft, files.heads, settings, called=name, public=self._public)

    def _child(self, name: str, load: Load) -> Child:
        return Child(load, hear=partial(self._count, name))

    def _count(self, name: str, event: str, news: dict[str, Any]) -> None:
        """What `Telling` tells."""
        if self.meter is None:
            return
        if event == "answered":
            stats = RequestStats()
            figures_in(stats, news["figures"])
            stats.gaps = news["gaps"]
            self.meter.add(name, news["number"], FinishReason(news["finish"]), stats, news["read"])
        elif event == "read":
            self.meter.read(name, news["tokens"], news["seconds"])
        elif event == "refused":
            self.meter.refused()
