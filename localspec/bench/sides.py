"""Sides of a benchmark: one engine that answers plain, as it comes, and with drafts of fixed lengths, and servers.

Ours share the models, their caches and the process, so what differs is the drafting. Plain decoding and localspec as it
comes are requests to the same loop, whose plan keeps what it learned, as in a program that keeps running. Fixed lengths
need the engine configured anew, and what they learn is kept apart: forced drafts are no experience of the plan's.

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
from itertools import product
from typing import Any

from localspec import __version__
from localspec.chat.turn import Message
from localspec.checks.compare import AskedTurn, TimedAnswer, TrialCorpus, ask
from localspec.checks.prompts import BenchPrompt, prompt_tokens, text_for_completion
from localspec.drafters import plugin
from localspec.drafters.heads import head as heads
from localspec.errors import ContextOverflowError, LocalspecError, UsageError
from localspec.llama.exact.wide import cpu_name
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

    def begin(self, prompt: BenchPrompt) -> None:
        """A conversation begins: nothing of an earlier one is reused."""
        engine = self._engine
        self._forget_answers()
        if prompt.apart and not self._plain:
            TrialCorpus(engine)
            self._configure()  # drafters are made anew
        elif (engine.settings.drafter, engine.settings.max_draft_tokens) != (self._drafter, self._length):
            self._configure()
        engine.forget()

    def answer(self, turn: AskedTurn) -> TimedAnswer:
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


def facts_of(engine: Engine) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The pair, the machine, and what a reader must know of these models: that they are padded ones."""
    loaded, labels = engine.loaded, list[str]()
    pair: dict[str, Any] = {}
    for kind, path, model in (
        ("target", loaded.settings.target, loaded.model),
        ("draft", loaded.settings.draft, loaded.draft_model),
    ):
        pair[kind] = None if path is None else {"name": path.name, "sha256": file_sha256(path)}
        if words := "" if model is None else model.header.text(PADDED):
            labels.append(f"The {kind} is a padded one: {words}.")
    if loaded.heads:
        pair["heads"] = [
            {"name": head.path.name, "method": head.name, "files": heads.identity(head)[1:]} for head in loaded.heads
        ]
    machine = {"processor": cpu_name(), "threads": loaded.context.threads, "exactness": loaded.exactness}
    return pair, machine | {"localspec": __version__}, labels


_MISSING, _UNKNOWN_FIELD = (404, 405, 501), (400, 422)
"""Statuses of a server without this path, and of one that knows the path but not a field."""


def rendered(engine: Engine, turn: AskedTurn) -> str:
    """Our prompt without the begin-of-sequence token, which servers add; raises ContextOverflowError."""
    text, model = turn.text, engine.loaded.model
    if turn.messages:
        count = len(prompt_tokens(engine, turn.messages))
        if count >= engine.loaded.context.n_ctx:
            raise ContextOverflowError(f"{count} tokens are more than the context holds.")
        has_template = engine.template.exists
        text = engine.template.render(turn.messages) if has_template else text_for_completion(turn.messages)
    return text.removeprefix(model.text_of(model.bos)) if model.add_bos else text


class ServedSide:
    """A side at a URL. It waits without an event loop, which would take 0.1 ms a token more."""

    def __init__(self, server: Server, render: Callable[[AskedTurn], str], *, name: str = "", model: str = "") -> None:
        """Asks for one token, to learn what it understands and whether it answers at all.

        `render` makes the prompt's text, without what the endpoint puts before a prompt by itself (the
        begin-of-sequence token's text). Without a name it is called by host and port, and asked for its first model.
        """
        self.name, self._requests = name or server.name, Requests(server)
        self.close = self._requests.close
        self._render, self._fresh = render, True
        self._model = model or self._first_model()
        self._path, self._extended = self._understood()
        prompt = "our rendered prompt" if self._path == "completions" else "messages, its own chat template"
        prompt += "" if self._extended else "; OpenAI's fields only, its own top-k and min-p"
        self.facts: Mapping[str, Any] = {
            "url": f"{server.base}/",
            "model": self._model,
            "prompt": prompt,
            "forgets": "asked to, each conversation" if self._extended else "not asked to",
        }

    def _first_model(self) -> str:
        try:
            return str(self._requests.whole("GET", "models").json()["data"][0]["id"])
        except Refused as error:
            if error.status not in _MISSING:
                raise
        except (ValueError, KeyError, IndexError, TypeError):
            pass
        return "default"  # it keeps no list; many do not care about the name

    def begin(self, prompt: BenchPrompt) -> None:
        """The next prompt is to be read anew, as far as the endpoint can be told so."""
        self._fresh = True

    def answer(self, turn: AskedTurn) -> TimedAnswer:
        """One token a piece; those that came without text (the end, halves of characters) count with the last."""
        if self._path != "completions" and not turn.messages:
            raise UsageError(
                f"{self.name} takes chat messages only, and this prompt is raw text.",
                "Give it an endpoint with /v1/completions, or prompts with messages.",
            )
        try:
            body = self._body(self._path, self._extended, turn, self._render(turn))
            texts, times, last, start = list[str](), list[float](), Piece(), time.perf_counter()
            with closing(self._requests.pieces(self._path, body)) as pieces:
                for piece in pieces:
                    if piece.text:
                        texts.append(piece.text)
                        times.append(time.perf_counter() - start)
                    last = last.then(piece)
            wall, arrivals = time.perf_counter() - start, [(seconds, 1) for seconds in times]
            tokens = max(last.tokens or 0, len(arrivals))
            missing = tokens - len(arrivals)
            if missing and last.finish == "stop":
                arrivals.append((wall, missing))  # the end token itself came with the last message
            elif missing and arrivals:
                arrivals[-1] = (arrivals[-1][0], 1 + missing)
            stats: dict[str, Any] = {"prompt_tokens": last.prompt_tokens} if last.prompt_tokens else {}
            if last.drafted is not None:
                accepted = last.accepted or 0
                rate = accepted / last.drafted if last.drafted else 0.0
                stats |= {"drafted": last.drafted, "accepted": accepted, "acceptance_rate": rate}
            return TimedAnswer("".join(texts), tokens, wall, arrivals, stats=stats)
        finally:
            self._fresh = False

    def _body(self, path: str, extended: bool, turn: AskedTurn, text: str) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        messages = [{"role": message.role, "content": message.content} for message in turn.messages]
        body |= {"prompt": text} if path == "completions" else {"messages": messages}
        wanted = turn.options
        body |= {"max_tokens": wanted.max_tokens, "seed": (wanted.seed or 0) % 2**31}
        body |= sampling_fields(wanted.sampling, more=extended)
        if extended:
            body |= {"ignore_eos": wanted.ignore_end, "cache_prompt": not self._fresh}
        return body

    def _understood(self) -> tuple[str, bool]:
        """The path that it has, and whether it takes llama-server's fields."""
        refusal: Refused | None = None
        for path, extended in product(("completions", "chat/completions"), (True, False)):
            if refusal is not None and refusal.status in _UNKNOWN_FIELD and extended:
                continue  # it has this path, and refused another of its fields
            body = self._body(path, extended, _GREETING, "Hi") | {"stream": False}
            body.pop("stream_options")
            try:
                self._requests.whole("POST", path, body)
                return path, extended
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


_COLD = Options(sampling=SamplingParams(temperature=0.0), seed=1, max_tokens=1)
_GREETING = AskedTurn((Message("user", "Hi"),), _COLD)
