"""What all routes share: the engines, the bounded queue, what is counted, /props of a model, the end of the server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from secrets import randbits
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from localspec import __version__
from localspec.engine.interfaces import Constraint
from localspec.errors import Cancelled, LocalspecError
from localspec.gguf import read_parts
from localspec.grammar.grammar import LARGE, Grammar
from localspec.grammar.trial import Trials
from localspec.llama.exact.choice import Progress
from localspec.models.facts.pairing import vocabulary
from localspec.runtime.generation import Generation
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.pool import Lease, Pool
from localspec.server.chat.answers import Answers
from localspec.server.http import meter
from localspec.server.http.meter import IgnoredNames, Metrics, Telling
from localspec.server.http.output import ApiError, client_gone, from_localspec, overloaded, unknown_model
from localspec.server.http.settings import ServerSettings
from localspec.types import SamplingParams

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine


def props_of(name: str, facts: ModelFacts) -> dict[str, Any]:
    """Of a model that is in memory."""
    more = {"speculative": facts.speculative | {"configuration": facts.configuration}}
    words = (facts.template, facts.bos, facts.eos)
    return _props(name, facts.target, facts.draft, facts.context, facts.slots, *words) | more


def props_unloaded(name: str, pool: Pool) -> dict[str, Any]:
    """Of a model that was never in memory, as its file tells it; a context of 0 is not known before it is loaded."""
    files = pool.files(name)
    header = read_parts(files.target)[0]
    words = vocabulary(header)
    ends = ("" if token is None else words.tokens[token].decode("utf-8", "replace") for token in (words.bos, words.eos))
    told = _props(name, files.target, files.draft, 0, pool.slots(files), header.chat_template or "", *ends)
    return told | {"is_sleeping": True}


def _props(
    name: str, target: object, draft: object, context: int, slots: int, template: str, bos: str, eos: str
) -> dict[str, Any]:
    return {
        "model_alias": name,
        "model_path": str(target),
        "draft_model_path": None if draft is None else str(draft),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"localspec {__version__}",
        "default_generation_settings": {"n_ctx": context, "params": asdict(SamplingParams()) | {"logit_bias": []}},
        "total_slots": slots,
        "chat_template": template,
        "bos_token": bos,
        "eos_token": eos,
        "is_sleeping": False,
    }


_Result = TypeVar("_Result")
Handle: TypeAlias = Callable[[Request], Awaitable[Response]]
_GRAMMARS = 2
"""Grammars that are compiled at once, and large ones that are tried; the others wait without a thread."""
_WAITING_GRAMMARS = 8  # large grammars that may wait to be tried: one of them may take some seconds
_PULLS = 2  # models that are installed at once; the others wait without a thread
_LARGE_BODIES = 2  # large bodies that are parsed at once; the others wait without a thread


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Answers of a model that have begun and not ended."""

    count: int  # those that wait for a slot included
    reading: Mapping[int, int]  # tokens of their prompts that have been read, by a number for each


def ending() -> ApiError:
    """503: nothing more is served."""
    return ApiError(503, "unavailable_error", "The server is ending.", code="shutting_down")


class Service:
    """Belongs to one event loop. Routes get it as `request.app.state.service`."""

    def __init__(self, pool: Pool, settings: ServerSettings, counting: Telling | None = None) -> None:
        self.pool = pool
        self.settings = settings
        self.meter = Metrics()
        self.counting = counting or self.meter
        self.ignored = IgnoredNames()
        self.large_bodies = CapacityLimiter(_LARGE_BODIES)  # bounds the threads that parse large bodies
        self.compiling = CapacityLimiter(_GRAMMARS)  # bounds the threads that compile grammars
        self.trying = CapacityLimiter(_GRAMMARS)  # bounds the processes in which large grammars are tried
        self.pulling = CapacityLimiter(_PULLS)  # bounds the threads that install models
        self.trials = Trials()
        self.started = int(time())
        self.ending = False
        self.stopped = False  # running answers were ended, too
        self.ready = False  # the default model has been loaded
        self.known: dict[str, dict[str, Any]] = {}  # what /props says of each model that was loaded here
        self.live: Counter[str] = Counter()  # answers under way by model, those that wait for a slot included
        self._answers: set[Answers] = set()
        self._numbers = count(randbits(48))  # other ones than those of a process that was here before
        self._running: dict[int, tuple[str, Generation]] = {}  # model and answer, of those that have not ended
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._waiting_for_load = 0
        self._reader = asyncio.Lock()
        self.reading = 0  # requests whose texts are read, or wait to be

    # -- engines ------------------------------------------------------------------------------------------------

    def resolve(self, name: str | None) -> str:
        """The model a request means: none given, or an alias, is the default; with a front, which has chosen, each."""
        known = name and not self.settings.behind and name not in self.settings.aliases
        return str(name) if known else self.pool.default

    async def lease(self, name: str | None) -> Lease:
        """The engine of a model, loaded if need be. The caller releases it, or hands it to `answer`. ApiError: 404 no
        such model; 503 no memory for it, too many wait for it, or the server is ending; 500 it cannot be loaded."""
        wanted = self.resolve(name)
        while not self.ending:
            lease = self.pool.lease_loaded(wanted)
            if lease is not None:
                return lease
            if wanted != self.pool.default:
                names = await to_thread.run_sync(self.pool.names)
                if wanted not in names:
                    if not self.settings.any_model:
                        raise unknown_model(wanted, sorted(names))
                    wanted = self.pool.default
                    continue
            if self._waiting_for_load >= max(1, self.settings.max_queue):
                raise overloaded(f"{self._waiting_for_load} requests wait for models to be loaded already.")
            self._waiting_for_load += 1
            try:
                await self.load(wanted)
            finally:
                self._waiting_for_load -= 1
        raise ending()

    def loading(self, name: str) -> bool:
        return name in self._loads

    async def load(self, name: str, progress: Progress | None = None) -> None:
        """Loads a model unless it is in memory; callers that come meanwhile wait for the same load."""
        task = self._loads.get(name)
        if task is None:
            task = self._loads[name] = asyncio.create_task(self._load(name, progress))
            task.add_done_callback(partial(self._loaded, name))
        await asyncio.shield(task)

    async def _load(self, name: str, progress: Progress | None) -> None:
        try:
            lease = await to_thread.run_sync(self.pool.lease, name, progress)
            facts = self.pool.facts()[name]
        except LocalspecError as error:
            raise from_localspec(error) from error
        self.known[name] = props_of(name, facts)
        lease.release()
        self.ready = self.ready or name == self.pool.default

    def _loaded(self, name: str, task: asyncio.Task[None]) -> None:
        self._loads.pop(name, None)
        if not task.cancelled():
            task.exception()  # looked at, even if everybody who waited for it is gone

    # -- answers ------------------------------------------------------------------------------------------------

    def answer(self, lease: Lease, starts: Sequence[Callable[[], Generation]]) -> Answers:
        """Starts the generations of a request, each by one of `starts`, and takes its lease over, which is released
        when the answers are closed and the last generation has ended, or if they cannot be started; the caller closes
        the answers.

        Raises:
            ApiError: 503 the queue is full or the server is ending, 400 more choices than there are places.
            LocalspecError: a generation could not be submitted.
        """
        generations: list[Generation] = []
        try:
            if self.ending:
                raise ending()
            self.check_count(lease.engine, len(starts))
            if self.live[lease.name] + len(starts) > self._places(lease.engine):
                self.counting.refused()
                full = f"All slots of {lease.name} are busy and {self.settings.max_queue} more answers may not wait."
                raise overloaded(full)
            for start in starts:
                generations.append(start())  # noqa: PERF401 - those that run must be known when one fails
        except BaseException:
            for generation in generations:
                generation.cancel()
            lease.release()
            raise
        self.live[lease.name] += len(generations)
        numbers = dict(zip(generations, self._numbers, strict=False))
        for generation, number in numbers.items():
            self._running[number] = lease.name, generation
            meter.answer_asked(lease.name, generation)

        def ended(generation: Generation) -> None:
            self.live[lease.name] -= 1
            del self._running[numbers[generation]]
            self.counting.answered(lease.name, numbers[generation], generation)
            meter.answer_ended(lease.name, generation, left=answers.closed, stopped=self.stopped)

        def over() -> None:
            self._answers.discard(answers)
            lease.release()

        answers = Answers(generations, ended, over)
        self._answers.add(answers)
        return answers

    async def served(self, request: Request, handle: Handle) -> Response:
        """What a route answers that needs a model; `handle` answers by a model of this process."""
        return await handle(request)

    async def under_way(self, name: str) -> UnderWay:
        """What a model that is in memory does now."""
        reading = {number: one.read for number, (model, one) in self._running.items() if model == name}
        return UnderWay(self.live[name], reading)

    def _places(self, engine: Engine) -> int:
        return engine.settings.slots + self.settings.max_queue

    def check_count(self, engine: Engine, count: int) -> None:
        """Refuses a request for more answers than there are places."""
        if count > self._places(engine):
            message = f"The request asks for {count} answers at once; this server takes {self._places(engine)}."
            raise ApiError(400, "invalid_request_error", message, param="n")

    async def grammar(self, engine: Engine, grammar: Grammar) -> Constraint:
        """A grammar for an engine, compiled off the event loop; a large one after it was tried. ApiError: 503."""
        limiter = self.compiling
        if len(grammar.source) > LARGE:
            limiter = self.trying
            waiting = limiter.statistics().tasks_waiting
            if waiting >= _WAITING_GRAMMARS:
                raise overloaded(f"{waiting} large grammars wait to be tried already.")
        read = await to_thread.run_sync(self.trials.read, grammar, lambda: self.stopped, limiter=limiter)
        return await to_thread.run_sync(engine.compiled, read, limiter=self.compiling)

    # -- texts that are read only ------------------------------------------------------------------------------

    @contextmanager
    def reading_texts(self) -> Iterator[None]:
        """Admits a request that has texts read only, for vectors or log-probabilities: all of them, or none (503)."""
        if self.ending:
            raise ending()
        if self.reading > self.settings.max_queue:
            self.counting.refused()
            raise overloaded(f"{self.reading} requests wait for texts to be read already.")
        self.reading += 1
        try:
            yield
        finally:
            self.reading -= 1

    async def read(
        self, name: str, tokens: int, work: Callable[[Callable[[], bool]], _Result], left: asyncio.Future[None]
    ) -> _Result:
        """Runs what reads a whole text on a worker thread, for a request that was admitted by `reading_texts`.

        One at a time, in the order they came, so that they take no more than one of the threads all routes share;
        requests of several texts take turns.

        Args:
            name, tokens: of the model and the text, for the meter.
            work: `Engine.embed` or `Engine.score`, to be given what says whether the result is not wanted any more.
            left: is done when the client has left.
        """
        turn = asyncio.ensure_future(self._reader.acquire())
        try:
            await asyncio.wait((turn, left), return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():  # who has left does not wait for it
                raise client_gone()
            start = perf_counter()
            found = await to_thread.run_sync(work, lambda: left.done() or self.stopped)
        except Cancelled:
            raise client_gone() if left.done() else ending() from None
        finally:
            if not turn.cancel():
                self._reader.release()
        self.counting.read(name, tokens, perf_counter() - start)
        return found

    # -- the end ------------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Takes no more requests; what runs goes on."""
        self.ending = True

    def stop(self) -> None:
        """Ends everything that runs, with an error for who reads it."""
        self.refuse()
        self.stopped = True
        for answers in tuple(self._answers):
            answers.stop(ending())
