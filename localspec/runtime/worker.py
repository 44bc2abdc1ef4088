"""The thread that owns the models: a queue of requests, slots to serve them in, prefix reuse between them, what is left
when a GPU fails, and what it does while it has nothing to answer, a short step at a time (`IdleJob`).

A request waits for one such step at most. None runs within seconds of a pass of this process. Passes and measurements
wait for mains power and for CPUs that are free; what others delayed does not count.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol, TypeVar

import numpy as np

from localspec.drafters.heads.head import displace
from localspec.drafters.plugin import Custom
from localspec.engine.interfaces import Request
from localspec.engine.loop import Loop
from localspec.engine.slot import Event, FinishReason, Slot
from localspec.errors import ContextOverflowError, DecodeError, DeviceError, LocalspecError
from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.llama.exact.wide import SelfCheck
from localspec.llama.library.contention import cpus, waited
from localspec.machine import available_bytes, on_battery
from localspec.planning.costs import PassCosts
from localspec.planning.plan import AdaptivePlan
from localspec.runtime import memory
from localspec.runtime.generation import Generation, Signs
from localspec.runtime.kept.caches import CacheFolder, ChatCaches, PromptCaches, PromptFolder
from localspec.runtime.loaded import Loaded
from localspec.runtime.loading import load_apart, make_loop
from localspec.runtime.placement import Placement, number, on_cpu
from localspec.types import NO_TOKENS, Feed

_QUIET_SECONDS = 2.0  # seconds without a pass in this process before one of these runs
_RETRY_SECONDS = 60.0  # seconds until it is tried again where it was not possible or disturbed
_MOST_DELAYED_SHARE = 0.1  # of a pass, the time its threads waited for a CPU from which on it does not count
_PASSES_A_WIDTH = 3  # passes of a width; the first one builds its graph and does not count
_FREE_BYTES = 4 * 256 * 2**20  # free for measuring: four times what that takes (native/wide/limits.c)


class IdleJob(Protocol):
    @property
    def wait(self) -> float | None:
        """Seconds until `step` may do something; None = there is nothing left."""

    def step(self) -> bool:
        """Does a short part of it if it may; whether that was the last one."""


def quiet_in() -> float:
    """Seconds until no pass has run in this process for a while."""
    return _QUIET_SECONDS if cpus.running else max(0.0, cpus.last_pass + _QUIET_SECONDS - perf_counter())


@dataclass
class IdleSelfCheck:
    """Tries our kernels, a case at a step."""

    check: SelfCheck
    failed: Callable[[str], None]  # called with the case that failed, if one does

    @property
    def wait(self) -> float | None:
        return None if self.check.over else quiet_in()

    def step(self) -> bool:
        self.check.step()
        if self.check.fault:
            self.failed(self.check.fault)
        return self.check.over


class IdleLimits:
    """Measures what this machine can do at most, once a day; the highest ever measured counts."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._known = wide.read_limits(threads)
        self._over, self._not_before = self._known is not None and self._known.of_today, 0.0

    @property
    def wait(self) -> float | None:
        return None if self._over else max(quiet_in(), self._not_before - perf_counter())

    def step(self) -> bool:
        self._not_before = perf_counter() + _RETRY_SECONDS
        if not on_battery() and (available_bytes() or 0) >= _FREE_BYTES:
            found = wide.measure_limits(self._threads, self._known)
            if found is not None:
                wide.write_limits(self._threads, found)
                self._over = True
        return self._over


class IdleCalibration:
    """Times the widths that have not run yet, of one engine with one slot and chains, on its thread. Its passes run
    after what the slot's cache holds and are then dropped from it, like a draft that was rejected whole: what stays has
    the bits of plain decoding."""

    def __init__(self, context: Context, widths: Sequence[int], costs: PassCosts) -> None:
        """Times passes of these widths; what they cost goes to `costs`."""
        self._context, self._costs = context, costs
        self._widths = sorted(widths, reverse=True)  # one that is not known counts as the next wider one
        self._times: list[float] = []
        self._own = -1  # passes begun in this process, its last one included
        self._not_before = 0.0

    @property
    def wait(self) -> float | None:
        if not self._widths:
            return None
        quiet = 0.0 if cpus.begun == self._own else quiet_in()
        return max(quiet, self._not_before - perf_counter())

    def step(self) -> bool:
        others = cpus.begun
        if self.wait != 0.0:
            return False
        if cpus.shared or on_battery() or not self._pass(others):
            self._not_before = perf_counter() + _RETRY_SECONDS
        return not self._widths

    def _pass(self, others: int) -> bool:
        """Times the next pass; False = it says nothing, or cannot be done. `others`: passes begun when none was
        running."""
        context, width = self._context, self._widths[0]
        held, prompt_length = context.held(0)
        length = len(held)
        if length + 1 + width > context.n_ctx:
            return False
        made = (np.arange(width) * 7919 % context.n_vocab).astype(np.int32)
        history = np.concatenate((held, made[:1]))
        if context.reusable(0, history, prompt_length) != length:
            return False  # it would have to be read anew, in other passes than before
        feed = Feed(0, history, prompt_length, made[1:], np.arange(-1, width - 2, dtype=np.int32))
        before, begun = waited(), perf_counter()
        try:
            context.decode([feed])
        except LocalspecError:  # the plan will hear of it when it wants such a pass
            self._widths.clear()
            return False
        finally:
            context.forget(0, length)
            self._own = others + 1
        seconds, after = perf_counter() - begun, waited()
        if before is not None and after is not None and after - before > _MOST_DELAYED_SHARE * seconds:
            return False
        if cpus.begun > self._own:
            return False  # one that began meanwhile ran beside it
        self._times.append(seconds)
        if len(self._times) == _PASSES_A_WIDTH:
            self._costs.observe(width, length, min(self._times[1:]))
            self._times.clear()
            del self._widths[0]
        return True


def unknown_widths(costs: PassCosts, widest: int, exact: frozenset[int] | None) -> list[int]:
    """Widths from 2 to `widest` that may run and of which no pass has been timed."""
    timed = costs.timed
    return [width for width in range(2, widest + 1) if width not in timed and (exact is None or width in exact)]


_LOG = logging.getLogger("localspec")

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
_LOSS_SHARE = 4  # tokens that may be lost for each that is cached: not every prompt comes again


class Worker:
    """What `Engine` does on its thread: runs a loop for those that submit requests."""

    def __init__(self, loaded: Loaded, loop: Loop) -> None:
        """Starts the thread. `loaded` must stay open until `_end`."""
        self.loaded, self._slots = loaded, loaded.context.settings.n_slots
        self.loop = loop  # changed on the thread only: by others while nothing is `busy`
        self.chats: ChatCaches | None = None  # used on the thread only; None = nothing is kept
        self.prompts: PromptCaches | None = None
        context, key, settings = loaded.context, loaded.cache_key, loaded.settings
        if key and settings.chat_cache_gb > 0:
            self.chats = ChatCaches(context, key, CacheFolder(int(settings.chat_cache_gb * 1e9)), quiet_in)
        if key and settings.prompt_cache_gb > 0:
            self.prompts = PromptCaches(context, key, PromptFolder(int(settings.prompt_cache_gb * 1e9)), quiet_in)
        self._caches = [caches for caches in (self.chats, self.prompts) if caches is not None]
        self._idle: list[IdleJob] = []
        self.outdated = ""  # why the models should be closed and loaded again; "" = they need not
        self._waiting: deque[Generation] = deque()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._running: dict[int, Generation] = {}
        self._signs = Signs()
        self._wake = threading.Condition()
        self.closing = False  # nothing more is taken
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="localspec-engine", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def running(self) -> dict[int, Generation]:
        return self._running.copy()

    @property
    def silence(self) -> tuple[float, float]:
        """Seconds since the models last did something, while they are asked to (else 0), and the longest such
        silence."""
        return self._signs.silent if self._asked else 0.0, self._signs.longest

    @property
    def _asked(self) -> bool:
        return self.busy or bool(self._jobs)

    @property
    def dropped(self) -> dict[str, str]:
        """Drafters that cannot be used, or not any more, and why: {name: reason}."""
        return {**self.loaded.unusable, **self.loop.plan.dropped}

    def on_engine_thread(self, job: Callable[[], _Result]) -> _Result:
        """What a function returns that is run on the thread, between passes. Raises LocalspecError: it is closed."""
        done: Future[_Result] = Future()
        self._queue(self._jobs, (job, done))
        return done.result()

    def _queue(self, queue: deque[_Item], item: _Item) -> None:
        with self._wake:
            if self.closing:
                raise LocalspecError("The engine is closed.")
            if not self._asked:
                self._signs.begin()
            queue.append(item)
            self._wake.notify()

    def work_when_idle(self) -> None:
        """Lets it find out in idle time what is not known of this machine and model; for programs that stay."""
        self.on_engine_thread(self._begin_idle_work)

    def _end(self) -> bool:
        """Cancels what runs and ends the thread; False if that was done before."""
        with self._wake:
            if self._closed:
                return False
            self._closed = self.closing = True
            for generation in (*self._waiting, *self._running.values()):
                generation.cancel()
            self._wake.notify()
        self._thread.join()
        return True

    # -- on the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                self._run_jobs()
                try:
                    self._admit_waiting()
                    if self.loop.active:
                        self._step()
                        self._signs.alive()
                    elif (job := next((one for one in self._idle if one.wait == 0.0), None)) is not None:
                        self._use_idle_time(job)
                except Exception as error:  # noqa: BLE001 - the worker's edge: those who wait must hear of it
                    for generation in self._running.values():
                        generation.deliver(error)
                    self._running.clear()
                    self.loop.abandon()
                    for index in range(self._slots):  # no slot's cache can be trusted
                        self.loaded.context.forget(index)
            for caches in self._caches:
                caches.close()
        except BaseException as error:  # noqa: BLE001 - no caller may wait for a thread that is gone
            fault = LocalspecError(f"The engine has failed: {error!r}.", "Start again; please report it.")
            with self._wake:
                self.closing = True
                for generation in (*self._running.values(), *self._waiting):
                    generation.deliver(fault)
                for _, done in self._jobs:
                    done.set_exception(fault)

    def _run_jobs(self) -> None:
        for _ in range(len(self._jobs)):  # what is queued meanwhile waits for a pass: those who decode go on
            job, done = self._jobs[0]  # it is asked for until it is done
            try:
                found = job()
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                self._jobs.popleft()
                done.set_exception(error)
            else:
                self._jobs.popleft()
                done.set_result(found)
            self._signs.alive()

    def _begin_idle_work(self) -> None:
        loaded, plan, jobs = self.loaded, self.loop.plan, list[IdleJob]()
        context = loaded.context
        jobs += [*self._caches, *([] if loaded.corpus is None else [loaded.corpus])]
        if loaded.self_check is not None:
            jobs += [IdleSelfCheck(loaded.self_check, self._distrust_kernels), IdleLimits(context.threads)]
        if isinstance(plan, AdaptivePlan) and loaded.settings.slots == context.max_leaves == 1 and context.can_trim:
            costs = loaded.knowledge.costs
            widths = unknown_widths(costs, 1 + loaded.settings.longest_draft, context.exact_widths)
            jobs.append(IdleCalibration(context, widths, costs))
        self._idle = jobs

    def _use_idle_time(self, job: IdleJob) -> None:
        try:
            over = job.step()
        except BaseException:
            self._idle.remove(job)  # it would fail again at once
            raise
        if over:
            self._idle.remove(job)
            self.loaded.save_knowledge()

    def _distrust_kernels(self, case: str) -> None:
        """Our kernels failed their check: nothing is exact any more with what is loaded."""
        self.loaded.context.exact_widths = None
        self.outdated = f"localspec's kernels compute {case} differently at different widths"

    def _wait_for_work(self) -> bool:
        """Blocks until there is something to do, if only a pass that may wait; False = close."""
        with self._wake:
            while not (self._asked or self.closing):
                patience = min((wait for job in self._idle if (wait := job.wait) is not None), default=None)
                if patience == 0.0:
                    break
                self._wake.wait(patience)
            return not self.closing or self._asked

    def _admit_waiting(self) -> None:
        with self._wake:
            gone = [generation for generation in self._waiting if generation.cancelled]
            for generation in gone:
                self._waiting.remove(generation)
        for generation in gone:  # they hear of it now, not when a slot is free
            generation.deliver(Event(-1, "", (), (), (), FinishReason.CANCELLED, generation.stats))
        if self._waiting and self.loaded.trained and memory.is_short():
            self.shed_draft("little memory is left")
        while self._waiting and len(self._running) < self._slots:
            with self._wake:  # so that close() finds it in one place or the other
                generation = self._waiting.popleft()
                index = self._best_slot(generation.request)
                self._running[index] = generation
            self._admit(index, generation)

    def _best_slot(self, request: Request) -> int:
        """Of the free slots that of the request's chat; else the one that already holds most of the prompt, and loses
        no long prompt of another for a short beginning; the lowest of equals (slots stay contiguous)."""
        context, prompt = self.loaded.context, request.prompt
        chunk, free = context.settings.grid, [index for index in range(self._slots) if index not in self._running]
        own = None if self.chats is None else self.chats.slot(request.chat)
        if own in free:
            return own

        def worth(index: int) -> tuple[int, int]:
            kept = context.reusable(index, prompt, len(prompt))
            lost = len(context.held(index)[0]) - kept
            return kept - lost // chunk * chunk // _LOSS_SHARE, -index

        return max(free, key=worth)

    def _admit(self, index: int, generation: Generation) -> None:
        if self.chats is not None:
            self.chats.serve(index, generation.request.chat, generation.request.prompt)
        if self.prompts is not None:
            self.prompts.serve(index, generation.request.prompt)
        try:
            slot = self.loop.admit(
                index, generation.request, generation.started, lambda: generation.cancelled, generation.prefilled
            )
            generation.stats = slot.stats
        except ContextOverflowError as error:
            del self._running[index]
            generation.deliver(error)

    def _step(self) -> None:
        """A step of the loop. One that fails is repeated: on the CPU where a GPU failed, else without the draft model,
        which may have taken the memory that lacked."""
        slots = dict(self.loop.active)
        try:
            try:
                events = self.loop.step()
            except DecodeError as error:
                if isinstance(error, DeviceError) and number(self.loaded.settings.gpu_layers):
                    self._move(error)
                elif not self.shed_draft(str(error)):
                    raise
                events = self.loop.step()
            self.drop({})
        except BaseException:
            self._hand_out(self.loop.abandon(), slots)
            raise
        self._hand_out(events, slots)

    def _hand_out(self, events: Sequence[Event], slots: Mapping[int, Slot]) -> None:
        """To those who wait; `slots` are those of the loop before the step that made the events."""
        for event in events:
            generation, slot = self._running[event.slot], slots[event.slot]
            if event.finish is not None:
                del self._running[event.slot]
                if self.loaded.corpus is not None and generation.kept and generation.request.remember:
                    self.loaded.corpus.keep(slot.history.tokens[len(slot.request.prompt) :], generation.request.chat)
            generation.deliver(slot.failure or event)

    def _move(self, error: DeviceError) -> None:
        """Loads the models again on the CPU, which goes on with what a GPU was computing, and says so. What requests
        have cached is computed again there, so the bits of what follows are other ones. Raises DeviceError: `exact` is
        strict, which those would break; or the CPU cannot serve."""
        loaded, settings = self.loaded, self.loaded.settings
        failed = f"The GPU ({settings.device}) failed" if settings.device else "The GPU failed"
        failed = f"{failed}: {error.message}"
        if settings.exact == "strict":
            self.outdated = failed
            hint = "Under --exact strict an answer does not go on on another device; ask again."
            raise DeviceError(failed, hint) from error
        _LOG.warning("%s The CPU goes on with the answers, marked exact: no.", failed)
        draft = settings.draft if loaded.draft_context is not None else None
        wanted = replace(settings, context=loaded.context.n_ctx, draft=draft, second_slot=False, corpus="off")
        try:
            fresh = load_apart(on_cpu(Placement(wanted), error.message).settings)
        except LocalspecError as fault:
            self.outdated = failed
            raise DeviceError(failed, f"The CPU cannot serve: {fault.message}") from fault
        fresh.settings = replace(fresh.settings, corpus=settings.corpus)  # it stays
        self._close_drafters()
        loaded.move(fresh)
        loaded.gpu_fault = error.message
        loop = make_loop(loaded, loaded.settings)
        loop.take_over(self.loop)
        self.loop = loop
        for caches in self._caches:
            caches.move(loaded.context, loaded.cache_key)
        if self._idle:
            self._begin_idle_work()

    def _close_drafters(self) -> None:
        for one in self.loop.plan.drafters:
            one.close()

    def drop(self, faults: Mapping[str, str]) -> None:
        """Drafters that failed, those with these faults and those that failed by themselves, are not asked any more; a
        draft model or head is freed, too. On the thread only."""
        plan = self.loop.plan
        own = {one.name: one.fault for one in plan.drafters if isinstance(one, Custom) and one.fault}
        for name, why in {**own, **faults}.items():
            plan.drop(name, why)
        for name in plan.dropped:
            self.loaded.drop(name)

    def _begin_anew(self) -> None:
        loaded = self.loaded
        own = [one for one in self.loop.plan.drafters if one.name in loaded.trained]
        free = [index for index in range(self._slots) if index not in self._running]
        if self.chats is not None:
            for index in free:
                self.chats.serve(index, None, NO_TOKENS)  # the chat's cache comes back when the chat goes on
        try:
            self.drop(displace(own, loaded.context, free))
        finally:
            for context in filter(None, (loaded.context, loaded.draft_context)):
                for index in free:
                    context.forget(index)

    def shed_draft(self, reason: str) -> bool:
        """Frees the draft model and heads, because of memory; whether there was one in use. On the thread only."""
        plan, trained = self.loop.plan, self.loaded.trained
        in_use = [one.name for one in plan.drafters if one.name in trained and one.name not in plan.dropped]
        for name in in_use:
            plan.drop(name, reason)
        for name in trained if in_use else ():
            self.loaded.drop(name)
        return bool(in_use)
