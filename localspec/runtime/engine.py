"""The engine: one thread that owns the models, a queue of requests, slots, and prefix reuse between them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from localspec.chat.template import ChatTemplate, Message
from localspec.config import EngineSettings
from localspec.engine.adaptive import AdaptivePlan
from localspec.engine.loop import Loop, Slot
from localspec.engine.request import Event, FinishReason, Request, fresh_seed
from localspec.errors import Cancelled, DecodeError, LocalspecError, UsageError
from localspec.llama.survey import Progress
from localspec.runtime import memory
from localspec.runtime.generation import Generation
from localspec.runtime.loading import Loaded, check_drafter, leaves, load_apart, make_drafter, make_plan
from localspec.types import Rule, SamplingParams, Tokens

_Result = TypeVar("_Result")


class Engine:
    """Text from a target that a drafter speeds up. Thread-safe; a context manager.

    >>> with Engine.load() as engine:                        # the bundled pair
    ...     for event in engine.chat([Message("user", "Hi")]):
    ...         print(event.text, end="")
    """

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.settings = loaded.settings
        model = loaded.model
        self.template = ChatTemplate(model.chat_template, model.text_of(model.bos), model.text_of(model.eos))
        self._loop = self._make_loop(loaded.settings)
        self._waiting: deque[Generation] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._running: dict[int, Generation] = {}
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="localspec-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        target: str | Path | None = None,
        draft: str | Path | None = None,
        *,
        progress: Progress | None = None,
        **settings: Any,
    ) -> Engine:
        """Loads a pair by name, or a target file with or without a draft file; nothing = the bundled pair.

        Args:
            target: name of a pair or model that is installed, or a GGUF file.
            draft: name or GGUF file of the draft model; overrides the pair's.
            progress: called with (what is being done, share done from 0 to 1); may raise to give up.
            settings: fields of `EngineSettings`.

        Raises:
            ModelFileError: a file is missing, damaged or of the wrong kind.
            PairError: target and draft do not share a tokenizer.
            UsageError: a setting has an impossible value.
        """
        from localspec.models.installed import find, find_one

        target_path, pair_draft = find(target)
        draft_path = pair_draft if draft is None else find_one(draft)
        wanted = EngineSettings(target=target_path, draft=draft_path, **settings)
        check_drafter(wanted)
        loaded = load_apart(wanted, progress)
        try:
            return cls(loaded)
        except BaseException:
            loaded.close()
            raise

    def tokenize(self, text: str, *, special: bool = True) -> Tokens:
        """Text to tokens, with the begin-of-sequence token where the model wants one."""
        return self.loaded.model.tokenize(text, special=special, add_bos=self.loaded.model.add_bos)

    def chat_tokens(self, messages: Sequence[Message], **variables: Any) -> Tokens:
        """The prompt for a conversation, by the model's chat template."""
        model = self.loaded.model
        text = self.template.render(messages, **variables)
        bos = model.text_of(model.bos)
        has_bos = bool(bos) and text.startswith(bos)
        return model.tokenize(text, special=True, add_bos=model.add_bos and not has_bos)

    def chat(self, messages: Sequence[Message], **options: Any) -> Generation:
        """Answers a conversation; options as in `generate`."""
        return self.generate(self.chat_tokens(messages), **options)

    def generate(
        self,
        prompt: str | Tokens,
        *,
        sampling: SamplingParams | None = None,
        seed: int | None = None,
        rule: Rule | None = None,
        max_draft_tokens: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        ignore_end: bool = False,
        top_log_probs: int | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Generation:
        """Continues a text or tokens; see `Request` for the options.

        Raises:
            UsageError: an empty prompt or an impossible option. Later errors come out of the generation.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else np.asarray(prompt, dtype=np.int32)
        outside = tokens[(tokens < 0) | (tokens >= self.loaded.model.n_vocab)]
        if len(outside):
            raise UsageError(f"Token {outside[0]} is not in the vocabulary of {self.loaded.model.n_vocab} tokens.")
        request = Request(
            tokens,
            sampling or SamplingParams(),
            fresh_seed() if seed is None else seed,
            rule=self.settings.verify_rule if rule is None else rule,
            max_draft_tokens=max_draft_tokens,
            max_tokens=max_tokens,
            stop=tuple(stop),
            ignore_end=ignore_end,
            top_log_probs=top_log_probs,
        )
        return self.submit(request, on_prefill)

    def submit(self, request: Request, on_prefill: Callable[[int, int], None] | None = None) -> Generation:
        """Queues a request.

        Raises:
            UsageError: the rule *block* with a drafter of trees.
        """
        if request.rule is Rule.BLOCK and self.settings.branches > 1:
            raise UsageError(f"The rule block verifies chains only, and branches is {self.settings.branches}.")
        generation = Generation(request, on_prefill)
        with self._wake:
            if self._closing:
                raise LocalspecError("The engine is closed.")
            self._waiting.append(generation)
            self._wake.notify()
        return generation

    def configure(self, **changes: Any) -> None:
        """Changes drafter settings between requests: drafter, max_draft_tokens, branches, min_ngram, max_ngram.

        Raises:
            UsageError: a request is running, or the setting is fixed at load.
        """
        allowed = {"drafter", "max_draft_tokens", "branches", "min_ngram", "max_ngram"}
        fixed = sorted(set(changes) - allowed)
        if fixed:
            raise UsageError(f"{fixed[0]} is fixed when the models are loaded; load them again to change it.")
        settings = replace(self.settings, **changes)
        check_drafter(settings)
        context = self.loaded.context.settings
        if leaves(settings) > context.max_leaves:
            raise UsageError(f"These models were loaded for chains; load them with branches={settings.branches}.")
        if settings.slots * (1 + settings.longest_draft) > context.max_rows:
            raise UsageError(
                f"These models were loaded for {context.max_rows} rows a pass, too few for drafts of "
                f"{settings.longest_draft}; load them with max_draft_tokens={settings.longest_draft}."
            )

        def change() -> None:
            if self._running or self._waiting:
                raise UsageError("The drafter cannot be changed while a request is running.")
            loop = self._make_loop(settings)
            self._loop.drafter.close()
            self._loop, self.settings = loop, settings

        self.on_engine_thread(change)

    def on_engine_thread(self, job: Callable[[], _Result]) -> _Result:
        """Runs a function on the thread that owns the models, between passes, and returns what it returns."""
        done: Future[_Result] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                done.set_exception(error)

        with self._wake:
            if self._closing:
                raise LocalspecError("The engine is closed.")
            self._jobs.append(run)
            self._wake.notify()
        return done.result()

    def close(self) -> None:
        """Cancels what runs, ends the thread and frees the models; a second call does nothing."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            for generation in (*self._waiting, *self._running.values()):
                generation.cancel()
            self._wake.notify()
        self._thread.join()
        self.loaded.knowledge.save()
        self.loaded.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_loop(self, settings: EngineSettings) -> Loop:
        context, model = self.loaded.context, self.loaded.model
        drafter = make_drafter(self.loaded, settings)
        return Loop(context, drafter, make_plan(self.loaded, settings, drafter), model)

    def _serve(self) -> None:
        while self._wait_for_work():
            while self._jobs:
                self._jobs.popleft()()
            try:
                self._admit_waiting()
                if self._loop.active:
                    self._step()
            except Exception as error:  # noqa: BLE001 - the worker's edge: those who wait must hear of it
                self._fail_all(error)

    def _wait_for_work(self) -> bool:
        """Blocks until there is something to do; False = close."""
        with self._wake:
            while not (self._waiting or self._jobs or self._running or self._closing):
                self._wake.wait()
            return not self._closing or bool(self._waiting or self._running or self._jobs)

    def _admit_waiting(self) -> None:
        with self._wake:
            gone = [generation for generation in self._waiting if generation.cancelled]
            for generation in gone:
                self._waiting.remove(generation)
        for generation in gone:  # they hear of it now, not when a slot is free
            generation.deliver(Event(-1, "", (), (), (), FinishReason.CANCELLED, generation.stats))
        if self._waiting and self.loaded.draft_context is not None and memory.is_short():
            self.shed_draft("little memory is left")
        while self._waiting and len(self._running) < self.settings.slots:
            with self._wake:  # so that close() finds it in one place or the other
                generation = self._waiting.popleft()
                index = self._best_slot(generation.request)
                self._running[index] = generation
            self._admit(index, generation)

    def _best_slot(self, request: Request) -> int:
        """The free slot that already holds most of the prompt; the lowest of equals (slots stay contiguous)."""
        free = [index for index in range(self.settings.slots) if index not in self._running]
        length = len(request.prompt)
        return max(free, key=lambda index: (self.loaded.context.reusable(index, request.prompt, length), -index))

    def _admit(self, index: int, generation: Generation) -> None:
        try:
            self._loop.admit(
                index, generation.request, generation.started, lambda: generation.cancelled, generation.on_prefill
            )
        except Cancelled:
            del self._running[index]
            generation.deliver(Event(index, "", (), (), (), FinishReason.CANCELLED, generation.stats))
        except LocalspecError as error:
            del self._running[index]
            generation.deliver(error)

    def _step(self) -> None:
        slots: dict[int, Slot] = dict(self._loop.active)
        for index, slot in slots.items():
            slot.cancelled = self._running[index].cancelled
        for event in self._passed():
            generation = self._running[event.slot]
            if event.finish is not None:
                del self._running[event.slot]
            generation.deliver(slots[event.slot].failure or event)

    def _passed(self) -> list[Event]:
        """A step of the loop; without memory for it the draft model is dropped first, and it is tried again."""
        try:
            events = self._loop.step()
        except DecodeError as error:
            if not self.shed_draft(str(error)):
                raise
            events = self._loop.step()
        plan = self._loop.plan
        if isinstance(plan, AdaptivePlan) and plan.dropped and self.loaded.draft_context is not None:
            self.loaded.drop_draft()  # it failed by itself
        return events

    def shed_draft(self, reason: str) -> bool:
        """Frees the draft model, because of memory; the chat goes on without it. Engine thread only.

        Returns:
            Whether there was one in use.
        """
        plan = self._loop.plan
        if not isinstance(plan, AdaptivePlan) or not plan.drop(reason):
            return False
        self.loaded.drop_draft()
        return True

    def _fail_all(self, error: Exception) -> None:
        """A pass failed: everybody hears of it, and nobody's cache can be trusted."""
        for generation in self._running.values():
            generation.deliver(error)
        self._running.clear()
        self._loop.active.clear()
        for index in range(self.settings.slots):
            self.loaded.context.forget(index)
