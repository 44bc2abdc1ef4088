"""An OpenAI-style endpoint as an answerer: vLLM, llama-server, another localspec. One thread runs the requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict
from time import monotonic, perf_counter
from typing import Any

import httpx2 as httpx

from localspec.chat.reply import ReplyParser
from localspec.engine.request import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import LocalspecError, UsageError
from localspec.tui.answerer import (
    POSTS_PER_SECOND,
    AnswerEnded,
    AnswerPart,
    Facts,
    LoadFailed,
    Loading,
    ModelReady,
    Question,
    Sink,
)
from localspec.tui.thinking import MARKS, apart, joined
from localspec.types import SamplingParams

_TIMEOUT = httpx.Timeout(30.0, read=600.0)
"""Seconds; a long prompt on a slow machine takes minutes before the first token."""
_SAMPLING = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty"),  # OpenAI's
    *("top_k", "min_p", "typical_p", "repeat_penalty"),  # vLLM's and llama-server's
)
_ENDS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class RemoteAnswerer:
    """Asks `URL/chat/completions` with `stream`; knows no tokens, origins or context."""

    def __init__(self, endpoint: str, model: str | None = None, key: str | None = None) -> None:
        """`endpoint`: with or without /v1 at its end. `model`: None = the first that the endpoint lists.

        Raises:
            UsageError: the address is none.
        """
        if not endpoint.startswith(("http://", "https://")):
            raise UsageError(f"--endpoint is {endpoint!r}; it must begin with http:// or https://.")
        base = endpoint.rstrip("/")
        self._base = base if base.endswith("/v1") else base + "/v1"
        self.name = model or base.partition("://")[2]
        self.facts: Facts | None = None
        self.piece: Callable[[int], bytes] | None = None
        self._model = model
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(headers=headers, timeout=_TIMEOUT)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="localspec-remote", daemon=True)
        self._thread.start()

    def start(self, sink: Sink) -> None:
        self._run(self._find_model(sink))

    def answer(self, question: Question, sink: Sink) -> RemoteAnswer:
        answer = RemoteAnswer(question.seed, self._loop)
        answer.task = self._run(self._answer(answer, question, sink))
        return answer

    def count(self, question: Question) -> int | None:
        return None

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self, job: Coroutine[Any, Any, None]) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop)

    async def _end(self) -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await self._client.aclose()
        self._loop.call_soon(self._loop.stop)

    async def _find_model(self, sink: Sink) -> None:
        sink.post_message(Loading(f"Asking {self._base}", 0.0))
        try:
            if self._model is None:
                reply = await self._client.get(f"{self._base}/models")
                await _check(reply)
                listed = reply.json()["data"]
                if not listed:
                    raise LocalspecError(f"{self._base} lists no models.", "Name one with --model.")
                self._model = str(listed[0]["id"])
        except LocalspecError as error:
            sink.post_message(LoadFailed(error))
        except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            sink.post_message(LoadFailed(self._failure(error)))
        else:
            self.facts = Facts(self._model, remote=True, can_think=True)
            sink.post_message(ModelReady(self.facts))

    async def _answer(self, answer: RemoteAnswer, question: Question, sink: Sink) -> None:
        feed = _Feed(answer, sink, question)
        finish, error = FinishReason.STOP, None
        try:
            async with self._client.stream(
                "POST", f"{self._base}/chat/completions", json=_body(question, self._model or "")
            ) as reply:
                await _check(reply)
                async for data in _events(reply):
                    finish = feed.take(data) or finish
        except asyncio.CancelledError:
            finish = FinishReason.CANCELLED
        except LocalspecError as failure:
            finish, error = FinishReason.ERROR, failure
        except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError, AttributeError) as failure:
            finish, error = FinishReason.ERROR, self._failure(failure)
        feed.finish()
        sink.post_message(AnswerEnded(answer, finish, feed.stats, error))

    def _failure(self, error: Exception) -> LocalspecError:
        if isinstance(error, httpx.TimeoutException):
            return LocalspecError(f"{self._base} does not answer in time.")
        if isinstance(error, httpx.HTTPError):
            return LocalspecError(f"{self._base} cannot be reached: {error or type(error).__name__}.")
        return LocalspecError(f"{self._base} answers something that is not OpenAI's format: {error!r}.")


class RemoteAnswer:
    """Cancelling closes the connection: servers stop generating then."""

    def __init__(self, seed: int | None, loop: asyncio.AbstractEventLoop) -> None:
        self.seed = seed
        self.task: Any = None
        self._loop = loop

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class _Feed:
    """Chunks to messages, joined until a post is due."""

    def __init__(self, answer: RemoteAnswer, sink: Sink, question: Question) -> None:
        self.stats = RequestStats()
        self._answer, self._sink = answer, sink
        self._reply = ReplyParser(thought=None if question.prefix else MARKS, thinking=bool(question.reasoning))
        self._text, self._thinking = "", ""
        self._began, self._first, self._posted = perf_counter(), 0.0, 0.0

    def take(self, data: dict[str, Any]) -> FinishReason | None:
        """One chunk; its finish reason, if it has one."""
        if "error" in data:
            raise LocalspecError(f"The endpoint failed: {_sentence(data['error'])}")
        usage = data.get("usage")
        if usage:
            self.stats.prompt_tokens = int(usage.get("prompt_tokens", 0))
            self.stats.generated = int(usage.get("completion_tokens", self.stats.generated))
        if not data.get("choices"):
            return None
        choice = data["choices"][0]
        delta = choice.get("delta") or {}
        text, thinking = apart(self._reply.push(delta.get("content") or ""))
        thinking += delta.get("reasoning_content") or delta.get("reasoning") or ""
        if text or thinking:
            self._count(usage is None)
        self._text += text
        self._thinking += thinking
        if monotonic() - self._posted >= 1 / POSTS_PER_SECOND:
            self.flush()
        return _ENDS.get(choice.get("finish_reason") or "")

    def _count(self, one: bool) -> None:
        """Endpoints send a token a chunk, mostly; the exact number may come at the end."""
        now = perf_counter()
        if not self._first:
            self._first = now
            self.stats.ttft_seconds = self.stats.prefill_seconds = now - self._began
        self.stats.generated += one
        self.stats.verify_seconds = now - self._first

    def flush(self) -> None:
        if self._text or self._thinking:
            self._posted = monotonic()
            part = AnswerPart(self._answer, self._text, stats=self.stats, thinking=self._thinking)
            self._text, self._thinking = "", ""
            self._sink.post_message(part)

    def finish(self) -> None:
        text, thinking = apart(self._reply.finish())
        self._text += text
        self._thinking += thinking
        self.flush()


async def _check(reply: httpx.Response) -> None:
    """Raises: LocalspecError with the endpoint's own sentence, for any status but success."""
    if reply.is_success:
        return
    text = (await reply.aread()).decode("utf-8", "replace")
    try:
        said = _sentence(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        said = text.strip()[:200]
    hint = "Set OPENAI_API_KEY, or give --api-key-file." if reply.status_code in (401, 403) else ""
    raise LocalspecError(f"The endpoint answers {reply.status_code}: {said or reply.reason_phrase}", hint)


def _sentence(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


async def _events(reply: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The data of server-sent events, until [DONE]."""
    async for line in reply.aiter_lines():
        if line.startswith("data:"):
            data = line[5:].strip()
            if data == "[DONE]":
                return
            yield json.loads(data)


def _body(question: Question, model: str) -> dict[str, Any]:
    """The request. Sampling settings at localspec's own defaults are left to the endpoint."""
    messages = [{"role": message.role, "content": message.content} for message in question.messages]
    sampling = asdict(question.sampling)
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    defaults = asdict(SamplingParams())
    for name in _SAMPLING:
        if sampling[name] != defaults[name]:
            body[name] = sampling[name]
    body |= {name: getattr(question, name) for name in ("seed", "max_tokens") if getattr(question, name) is not None}
    if question.stop:
        body["stop"] = list(question.stop)
    if question.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": question.thinking}
    begun = joined(question.reasoning, question.prefix)
    if begun:  # vLLM's words; llama-server continues a last assistant message by itself
        body["messages"] = [*messages, {"role": "assistant", "content": begun}]
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body
