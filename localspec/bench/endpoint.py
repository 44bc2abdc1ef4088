"""Another program's server as a contender: the same prompts to any OpenAI-style endpoint, timed as they arrive.

The prompt goes out as the target's own chat template renders it, to `/v1/completions`, so that no other template and
no other tokenizer settings come between; an endpoint that has only `/v1/chat/completions` gets the messages, and
`facts` say so. What OpenAI's fields cannot say (top-k, min-p, going on after the end, forgetting the last prompt) goes
out in llama-server's words, unless the endpoint refuses them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2 as httpx

from localspec.bench.event_stream import Piece, pieces
from localspec.bench.run import Answer, Turn
from localspec.chat.turn import Message
from localspec.errors import LocalspecError, UsageError
from localspec.types import NO_TOKENS, SamplingParams

_CONNECT_SECONDS = 10.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MISSING, _REFUSED, _UNKNOWN_FIELD = (404, 405, 501), (401, 403), (400, 422)


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where it is and how it is asked."""

    url: str
    """`http://host:port`, with or without `/v1` after it."""
    name: str = ""
    """In tables; "" = host and port."""
    model: str = ""
    """As the endpoint calls it; "" = the first one it lists."""
    key: str = ""
    """Sent as a bearer token; never written down."""
    timeout: float = 300.0
    """Seconds without a sign of life, reading a long prompt included."""
    begin_of_text: str = ""
    """What the endpoint puts before a prompt by itself (the begin-of-sequence token's text); it is cut off ours."""
    reuse: bool = False
    """Let it keep what it has read of an earlier conversation: for timing answers after a long common prompt."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the endpoint understands."""

    path: Literal["completions", "chat/completions"]
    extended: bool
    """Fields beyond OpenAI's."""

    def __str__(self) -> str:
        prompt = "our rendered prompt" if self.path == "completions" else "messages, its own chat template"
        return prompt if self.extended else f"{prompt}; OpenAI's fields only, its own top-k and min-p"


_DIALECTS = (
    Dialect("completions", True),
    Dialect("completions", False),
    Dialect("chat/completions", True),
    Dialect("chat/completions", False),
)


class _HTTPStatusError(Exception):
    """The endpoint said no."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


@dataclass(slots=True)
class _Reading:
    """What has arrived so far."""

    parts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    last: Piece = field(default_factory=Piece)


class Endpoint:
    """A contender (`run.Contender`) at a URL."""

    def __init__(self, settings: EndpointSettings) -> None:
        """Asks for one token, to learn what it understands and whether it answers at all.

        Raises:
            UsageError: the URL cannot be one.
            LocalspecError: nothing answers there, or not as an OpenAI-style endpoint.
        """
        self.settings, self.base = settings, _base_of(settings.url)
        self.name = settings.name or f"{self.base.host}:{self.base.port or _default_port(self.base)}"
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        self._client = httpx.Client(
            base_url=self.base,
            headers=headers,
            timeout=httpx.Timeout(settings.timeout, connect=_CONNECT_SECONDS),
            # While others have their turn a server closes idle connections, perhaps just as we ask again.
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=self.base.host not in _LOOPBACK,  # a proxy cannot reach this machine
        )
        self._fresh = True
        try:
            self._model = settings.model or self._first_model()
            self._dialect = self._understood()
        except BaseException:
            self._client.close()
            raise
        self.facts: Mapping[str, Any] = {
            "url": str(self.base),
            "model": self._model,
            "prompt": str(self._dialect),
            "forgets": "asked to, each conversation"
            if self._dialect.extended and not settings.reuse
            else "not asked to",
        }

    def begin(self) -> None:
        """The next prompt is to be read anew, as far as the endpoint can be told so."""
        self._fresh = not self.settings.reuse

    def answer(self, turn: Turn) -> Answer:
        """Streams one answer.

        Raises:
            UsageError: raw text for an endpoint that takes messages only.
            LocalspecError: it is gone, refuses, fell silent, or died in the middle.
        """
        if self._dialect.path != "completions" and not turn.messages:
            raise UsageError(
                f"{self.name} takes chat messages only, and this prompt is raw text.",
                "Give it an endpoint with /v1/completions, or prompts with messages.",
            )
        body = self._body(self._dialect, turn)
        try:
            return self._timed(body)
        except _HTTPStatusError as error:
            raise self._refused(error) from None
        finally:
            self._fresh = False

    def close(self) -> None:
        self._client.close()

    # -- asking ---------------------------------------------------------------------------------------------------

    def _body(self, dialect: Dialect, turn: Turn) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        if dialect.path == "completions":
            body["prompt"] = turn.text.removeprefix(self.settings.begin_of_text)
        else:
            body["messages"] = [{"role": message.role, "content": message.content} for message in turn.messages]
        body |= {"max_tokens": turn.max_tokens, "seed": turn.seed % 2**31}
        body |= _openai_fields(turn.sampling)
        if dialect.extended:
            body |= _llama_fields(turn.sampling)
            body |= {"ignore_eos": turn.ignore_end, "cache_prompt": not self._fresh}
        return body

    def _timed(self, body: Mapping[str, Any]) -> Answer:
        reading, start = _Reading(), time.perf_counter()
        try:
            with self._client.stream("POST", self._dialect.path, json=body) as response:
                _check(response)
                for piece in pieces(response.iter_lines()):
                    if piece.error:
                        raise LocalspecError(f"{self.name} broke an answer off: {piece.error}")
                    if piece.text:
                        reading.parts.append(piece.text)
                        reading.times.append(time.perf_counter() - start)
                    reading.last = reading.last.then(piece)
        except httpx.HTTPError as error:
            raise self._gone(error, bool(reading.parts)) from error
        if not reading.last.done:
            raise LocalspecError(
                f"{self.name} ended its answer in the middle.", "Start it again; the finished runs are kept."
            )
        return _answer(reading, time.perf_counter() - start)

    def _understood(self) -> Dialect:
        """The first way of asking that works."""
        refusal = _HTTPStatusError(404, "")
        for dialect in _DIALECTS:
            if refusal.status in _UNKNOWN_FIELD and dialect.extended:
                continue  # it has this path, and refused another of its fields
            body = self._body(dialect, _GREETING) | {"stream": False}
            body.pop("stream_options")
            try:
                response = self._client.post(dialect.path, json=body)
                _check(response)
                return dialect
            except _HTTPStatusError as error:
                if error.status not in (*_MISSING, *_UNKNOWN_FIELD):
                    raise self._refused(error) from None
                refusal = error
            except httpx.HTTPError as error:
                raise self._gone(error, False) from error
        raise self._refused(refusal)

    def _first_model(self) -> str:
        try:
            response = self._client.get("models")
            _check(response)
            return str(response.json()["data"][0]["id"])
        except httpx.HTTPError as error:
            raise self._gone(error, False) from error
        except _HTTPStatusError as error:
            if error.status in _REFUSED:
                raise self._refused(error) from None
            return "default"  # it keeps no list; many do not care about the name
        except (ValueError, KeyError, IndexError, TypeError):
            return "default"

    # -- words ----------------------------------------------------------------------------------------------------

    def _refused(self, error: _HTTPStatusError) -> LocalspecError:
        said = f" ({error.words})" if error.words else ""
        if error.status in _REFUSED:
            return LocalspecError(
                f"{self.name} wants a key (HTTP {error.status}{said}).",
                "Name the variable that holds it: --against-key.",
            )
        if error.status in _MISSING:
            return LocalspecError(
                f"{self.base} has neither /completions nor /chat/completions (HTTP {error.status}{said}).",
                "Give the address of an OpenAI-style endpoint, such as http://127.0.0.1:8080/v1.",
            )
        return LocalspecError(f"{self.name} refused the request: HTTP {error.status}{said}.")

    def _gone(self, error: httpx.HTTPError, begun: bool) -> LocalspecError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return LocalspecError(f"Nothing answers at {self.base}: {error}.", "Is the server running?")
        if isinstance(error, httpx.TimeoutException):
            return LocalspecError(
                f"{self.name} said nothing for {self.settings.timeout:g} seconds.", "Allow more with --against-timeout."
            )
        where = "in the middle of an answer" if begun else "before it answered"
        return LocalspecError(
            f"{self.name} closed the connection {where}: {error}.", "Start it again; the finished runs are kept."
        )


_GREETING = Turn((Message("user", "Hi"),), "Hi", NO_TOKENS, SamplingParams(temperature=0.0), seed=1, max_tokens=1)


def _base_of(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, TypeError) as error:
        raise UsageError(f"{text!r} is no URL: {error}.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"{text!r} is no URL of an endpoint.", "It looks like http://127.0.0.1:8080/v1.")
    path = url.path.rstrip("/")
    for tail in ("/chat/completions", "/completions"):
        path = path.removesuffix(tail)
    return url.copy_with(path=f"{path}/" if path.endswith("/v1") else f"{path}/v1/", query=None, fragment=None)


def _default_port(url: httpx.URL) -> int:
    return 443 if url.scheme == "https" else 80


def _check(response: httpx.Response) -> None:
    if response.status_code == 200:
        return
    response.read()
    words = ""
    try:
        said = response.json()
        said = said.get("error", said) if isinstance(said, dict) else said
        words = str(said.get("message", said) if isinstance(said, dict) else said)
    except ValueError:
        words = response.text
    raise _HTTPStatusError(response.status_code, " ".join(words.split())[:200])


def _openai_fields(sampling: SamplingParams) -> dict[str, Any]:
    fields: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if sampling.presence_penalty or sampling.frequency_penalty:
        fields["presence_penalty"] = sampling.presence_penalty
        fields["frequency_penalty"] = sampling.frequency_penalty
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): value for token, value in sampling.logit_bias}
    return fields


def _llama_fields(sampling: SamplingParams) -> dict[str, Any]:
    return {
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": sampling.penalty_last_n,
    }


def _answer(reading: _Reading, wall: float) -> Answer:
    """One token a piece; those that came without text of their own (the end, halves of characters) with the last."""
    last, arrivals = reading.last, [(seconds, 1) for seconds in reading.times]
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
    return Answer("".join(reading.parts), tokens, wall, arrivals, finish=last.finish, stats=stats)
