"""Sides of a benchmark: one engine that answers plain, as it comes, and with drafts of fixed lengths, and servers.

Ours share the models, their caches and the process, so what differs is the drafting. Plain decoding and localspec as it
comes are requests to the same loop: what the plan has learned stays with it, as in a program that keeps running. Fixed
lengths need the engine configured anew, after which the plan starts from what it remembers, as a program does that has
just started. What they learn is kept apart from it: forced drafts are no experience of the plan's.

Another program's server gets the prompt as the target's own chat template renders it, at `/v1/completions`, so that no
other template and no other tokenizer settings come between; an endpoint that has only `/v1/chat/completions` gets the
messages, and `facts` say so. What OpenAI's fields cannot say (top-k, min-p, going on after the end, forgetting the last
prompt) goes out in llama-server's words, unless the endpoint refuses them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from localspec import __version__
from localspec.chat.turn import Message
from localspec.checks.compare import Answer, TrialCorpus, Turn, ask
from localspec.checks.prompts import Prompt, prompt_tokens, text_for_completion
from localspec.drafters import plugin
from localspec.drafters.heads import loading as heads
from localspec.errors import ContextOverflowError, LocalspecError, UsageError
from localspec.llama.exact.facts import cpu_name
from localspec.llama.model import file_sha256
from localspec.methods import COPYING, HEADS
from localspec.options import Options
from localspec.remote.answerer import sampling_fields
from localspec.remote.asking import Requests
from localspec.remote.server import Piece, Refused, Server
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams

PADDED = "localspec.padded"
"""Key of a GGUF file under which a padded model says so, in words that must stand beside every number it gives."""
BASELINE, PRODUCT = "plain", "localspec"
"""Names of the sides that all others are compared with: plain decoding, and localspec without any flag."""


class EngineSide:
    def __init__(self, engine: Engine, name: str, drafter: str = "auto", length: int | None = None) -> None:
        """The engine is loaded with `max_draft_tokens=None` and every drafter that sides name, and has what its own
        plan has learned; drafts have `length` tokens in every pass, where None = what pays, and 0 = plain decoding.
        """
        self.name, self._engine, self._drafter = name, engine, drafter
        self._plain, self._length = length == 0, length or None
        self._own = self._learned = engine.loaded.knowledge.acceptance
        if length or drafter != "auto":
            self._learned = copy.deepcopy(self._own)

    def begin(self, prompt: Prompt) -> None:
        """A conversation begins: nothing of an earlier one is reused."""
        engine = self._engine
        self._forget_answers()
        if prompt.apart and not self._plain:
            TrialCorpus(engine)
            self._configure()  # drafters are made anew
        elif (engine.settings.drafter, engine.settings.max_draft_tokens) != (self._drafter, self._length):
            self._configure()
        engine.forget()

    def answer(self, turn: Turn) -> Answer:
        """Answers; cancelled if the caller is interrupted."""
        corpus = self._engine.loaded.corpus
        if isinstance(corpus, TrialCorpus):
            corpus.settle()  # a user does not ask again within milliseconds
        drafter, apart = "none" if self._plain else None, isinstance(corpus, TrialCorpus)
        return ask(self._engine, turn.having(drafter=drafter, recall=apart, remember=apart))

    def close(self) -> None:
        """The engine is its maker's, and remembers what its own plan learned."""
        self._forget_answers()
        self._engine.loaded.knowledge.acceptance = self._own

    def _configure(self) -> None:
        """Plans that are made from now on use what this side has learned."""
        self._engine.loaded.knowledge.acceptance = self._learned
        self._engine.configure(drafter=self._drafter, max_draft_tokens=self._length)

    def _forget_answers(self) -> None:
        corpus = self._engine.loaded.corpus
        if isinstance(corpus, TrialCorpus):
            corpus.close()
            self._configure()


def engine_sides(engine: Engine, drafters: Sequence[str] = (), lengths: Sequence[int] = ()) -> list[EngineSide]:
    """Plain decoding, localspec as it comes, and each drafter with each length."""
    found = [EngineSide(engine, BASELINE, length=0), EngineSide(engine, PRODUCT)]
    for drafter in drafters:
        if drafter == "draft" and engine.loaded.draft_context is None:
            raise UsageError("The drafter `draft` needs a draft model.", "Give one with --draft FILE, or a pair.")
        if drafter in HEADS and drafter not in engine.loaded.trained:
            raise heads.missing(drafter)
        found += [EngineSide(engine, f"{drafter} {length}", drafter, length) for length in lengths]
    return found


def possible_drafters(engine: Engine) -> list[str]:
    """The drafters that can run by themselves with what is loaded; those of installed packages too, if sound."""
    own = [*engine.loaded.trained, *COPYING]
    return own + [name for name in plugin.installed() if name not in engine.dropped]


def pair_facts(engine: Engine) -> dict[str, Any]:
    settings = engine.loaded.settings
    files = {"target": settings.target, "draft": settings.draft}
    found: dict[str, Any] = {
        kind: None if path is None else {"name": path.name, "sha256": file_sha256(path)} for kind, path in files.items()
    }
    if engine.loaded.heads:
        found["heads"] = [
            {"name": head.path.name, "method": head.name, "files": heads.identity(head)[1:]}
            for head in engine.loaded.heads
        ]
    return found


def machine_facts(engine: Engine) -> dict[str, Any]:
    return {
        "processor": cpu_name(),
        "threads": engine.loaded.context.threads,
        "exactness": engine.loaded.exactness,
        "localspec": __version__,
    }


def labels(engine: Engine) -> list[str]:
    found = []
    for kind, model in (("target", engine.loaded.model), ("draft", engine.loaded.draft_model)):
        words = "" if model is None else model.header.text(PADDED)
        if words:
            found.append(f"The {kind} is a padded one: {words}.")
    return found


_MISSING, _UNKNOWN_FIELD = (404, 405, 501), (400, 422)
"""Statuses of a server without this path, and of one that knows the path but not a field."""


@dataclass(frozen=True, slots=True)
class Dialect:
    path: Literal["completions", "chat/completions"]
    extended: bool

    def __str__(self) -> str:
        prompt = "our rendered prompt" if self.path == "completions" else "messages, its own chat template"
        return prompt if self.extended else f"{prompt}; OpenAI's fields only, its own top-k and min-p"


def rendered(engine: Engine, turn: Turn) -> str:
    """Our prompt without the begin-of-sequence token, which servers add by themselves.

    Raises:
        ContextOverflowError: our context does not hold it.
    """
    text, model = turn.text, engine.loaded.model
    if turn.messages:
        count = len(prompt_tokens(engine, turn.messages))
        if count >= engine.loaded.context.n_ctx:
            raise ContextOverflowError(f"{count} tokens are more than the context holds.")
        has_template = engine.template.exists
        text = engine.template.render(turn.messages) if has_template else text_for_completion(turn.messages)
    return text.removeprefix(model.text_of(model.bos)) if model.add_bos else text


class Served:
    """A side at a URL. It waits without an event loop, which would take 0.1 ms a token more."""

    def __init__(self, server: Server, render: Callable[[Turn], str], *, name: str = "", model: str = "") -> None:
        """Asks for one token, to learn what it understands and whether it answers at all.

        `render` makes the prompt's text, without what the endpoint puts before a prompt by itself (the
        begin-of-sequence token's text). Without a name it is called by host and port, and asked for its first model.
        """
        self.name, self._requests = name or server.name, Requests(server)
        self._render, self._fresh = render, True
        self._model = model or self._first_model()
        self._dialect = self._understood()
        self.facts: Mapping[str, Any] = {
            "url": f"{server.base}/",
            "model": self._model,
            "prompt": str(self._dialect),
            "forgets": "asked to, each conversation" if self._dialect.extended else "not asked to",
        }

    def begin(self, prompt: Prompt) -> None:
        """The next prompt is to be read anew, as far as the endpoint can be told so."""
        self._fresh = True

    def answer(self, turn: Turn) -> Answer:
        if self._dialect.path != "completions" and not turn.messages:
            raise UsageError(
                f"{self.name} takes chat messages only, and this prompt is raw text.",
                "Give it an endpoint with /v1/completions, or prompts with messages.",
            )
        try:
            return self._timed(self._body(self._dialect, turn, self._render(turn)))
        finally:
            self._fresh = False

    def close(self) -> None:
        self._requests.close()

    def _body(self, dialect: Dialect, turn: Turn, text: str) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        messages = [{"role": message.role, "content": message.content} for message in turn.messages]
        body |= {"prompt": text} if dialect.path == "completions" else {"messages": messages}
        wanted = turn.options
        body |= {"max_tokens": wanted.max_tokens, "seed": (wanted.seed or 0) % 2**31}
        body |= sampling_fields(wanted.sampling, more=dialect.extended)
        if dialect.extended:
            body |= {"ignore_eos": wanted.ignore_end, "cache_prompt": not self._fresh}
        return body

    def _timed(self, body: Mapping[str, Any]) -> Answer:
        texts, times, last, start = list[str](), list[float](), Piece(), time.perf_counter()
        with closing(self._requests.pieces(self._dialect.path, body)) as pieces:
            for piece in pieces:
                if piece.text:
                    texts.append(piece.text)
                    times.append(time.perf_counter() - start)
                last = last.then(piece)
        return _answer("".join(texts), times, last, time.perf_counter() - start)

    def _understood(self) -> Dialect:
        refusal: Refused | None = None
        paths: tuple[Literal["completions", "chat/completions"], ...] = ("completions", "chat/completions")
        for dialect in (Dialect(path, extended) for path in paths for extended in (True, False)):
            if refusal is not None and refusal.status in _UNKNOWN_FIELD and dialect.extended:
                continue  # it has this path, and refused another of its fields
            body = self._body(dialect, _GREETING, "Hi") | {"stream": False}
            body.pop("stream_options")
            try:
                self._requests.whole("POST", dialect.path, body)
                return dialect
            except Refused as error:
                if error.status not in (*_MISSING, *_UNKNOWN_FIELD):
                    raise
                refusal = error
        assert refusal is not None
        if refusal.status in _UNKNOWN_FIELD:
            raise refusal
        raise LocalspecError(
            f"{self._requests.server.base} has neither /completions nor /chat/completions ({refusal.message}).",
            "Give the address of an OpenAI-style endpoint, such as http://127.0.0.1:8080/v1.",
        )

    def _first_model(self) -> str:
        try:
            return str(self._requests.whole("GET", "models").json()["data"][0]["id"])
        except Refused as error:
            if error.status not in _MISSING:
                raise
        except (ValueError, KeyError, IndexError, TypeError):
            pass
        return "default"  # it keeps no list; many do not care about the name


_COLD = Options(sampling=SamplingParams(temperature=0.0), seed=1, max_tokens=1)
_GREETING = Turn((Message("user", "Hi"),), _COLD)


def _answer(text: str, times: list[float], last: Piece, wall: float) -> Answer:
    """One token a piece; those that came without text of their own (the end, halves of characters) with the last."""
    arrivals = [(seconds, 1) for seconds in times]
    tokens = last.tokens or len(arrivals)
    missing = tokens - len(arrivals)
    if missing > 0 and last.finish == "stop":
        arrivals.append((wall, missing))  # the end token itself came with the last message
    elif missing > 0 and arrivals:
        arrivals[-1] = (arrivals[-1][0], 1 + missing)
    elif missing < 0:
        tokens = len(arrivals)
    stats: dict[str, Any] = {}
    if last.prompt_tokens:
        stats["prompt_tokens"] = last.prompt_tokens
    if last.drafted is not None:
        stats |= {"drafted": last.drafted, "accepted": last.accepted or 0}
        stats["acceptance_rate"] = (last.accepted or 0) / last.drafted if last.drafted else 0.0
    return Answer(text, tokens, wall, arrivals, stats=stats)
