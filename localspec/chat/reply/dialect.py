"""How one model is told of tools, and how it writes calls and thoughts: recognised from its template and vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from localspec.chat.prompt.marks import Marks, marks_of
from localspec.chat.prompt.sealed import Sealed, json_text, opened
from localspec.chat.reply.call_form import CallForm, json_rule
from localspec.chat.reply.forms import DEEPSEEK_CALL, TAGGED, JsonForm, ListForm, NamedForm, deepseek, form_of
from localspec.chat.reply.harmony import ANSWER, BEGUN, HARMONY, NEXT, START, HarmonyParser, one_call_each
from localspec.chat.reply.harmony import THOUGHT as HARMONY_THOUGHT
from localspec.chat.reply.reply import THOUGHTS, AnswerParser, ReplyParser, Thought
from localspec.chat.reply.tool import AUTO, Tool, ToolCall, ToolChoice
from localspec.chat.turn import Message
from localspec.errors import UsageError
from localspec.grammar.grammar import Grammar, Trigger
from localspec.llama.special_tokens import SpecialToken
from localspec.types import NO_TOKENS, Prompt, Tokens

_HEAD_TOKENS = 24
"""Tokens of a prompt in which marks are looked for: at its end, or from where its last message begins."""
_LONGEST_LAZY = 16 * 1024
"""Characters of a grammar for calls that need not be made; longer ones would be tried elsewhere first, for seconds."""


class MarkedVocabulary(Protocol):
    """What must be known of a model (`llama.model.Model` is one)."""

    chat_template: str | None
    end_tokens: frozenset[int]

    @property
    def special_tokens(self) -> tuple[SpecialToken, ...]: ...

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens: ...

    def tokenize_prompt(self, prompt: Prompt, *, add_bos: bool) -> Tokens: ...

    def detokenize(self, tokens: Sequence[int] | Tokens, special: bool = False) -> str: ...

    def piece(self, token: int, special: bool = False) -> bytes: ...


class Dialect:
    """What a model's template and vocabulary say about calls and thoughts; an engine has one."""

    def __init__(self, vocabulary: MarkedVocabulary) -> None:
        source = vocabulary.chat_template or ""
        self._vocabulary = vocabulary
        form = form_of(source) if re.search(r"\btools\b", source) else None
        self.renders_tools = form is not None
        """Whether the template writes tools, calls and results by itself; else `turn` puts them into the messages."""
        self._renders_calls = "tool_calls" in source
        self._spelling = deepseek("```json" in source) if DEEPSEEK_CALL in source else TAGGED
        """How calls are spelled where the template does not help."""
        self.form: CallForm = form or self._spelling
        self.has_channels = self.form is HARMONY
        """Whether answers are messages with headers, as gpt-oss writes them."""
        named = [HARMONY_THOUGHT] if self.has_channels else []
        named += [thought for thought in THOUGHTS if thought.opening in source or thought.closing in source]
        known = (one for one in THOUGHTS if None not in (self.token_of(one.opening), self.token_of(one.closing)))
        self.thought = named[0] if named else next(known, None)
        """Marks of its thoughts; None = it has none."""

    def token_of(self, text: str) -> int | None:
        """The one token that stands for a marker; None = the model spells it."""
        tokens = self.marked(text)
        return int(tokens[0]) if len(tokens) == 1 else None

    def spelled(self, text: str) -> Tokens:
        """int32[n], a text that the model said: of all marks only its own thoughts' count, and user-defined calls'."""
        prompt = opened(self._marks.sealed(text, by_model=True))
        return self._vocabulary.tokenize_prompt(prompt, add_bos=False) if text else NO_TOKENS

    def marked(self, text: str) -> Tokens:
        """int32[n], a text whose markers are the tokens that stand for them."""
        return self._vocabulary.tokenize(text, special=True, add_bos=False)

    def is_control(self, token: int) -> bool:
        """Whether the token's text is left out of answers unless it is preserved."""
        return not self._vocabulary.piece(token) and token not in self._vocabulary.end_tokens

    def channel(self, prompt: Tokens) -> str | None:
        """The channel in which an answer goes on; None = a header comes first, or there are no channels."""
        if not self.has_channels:
            return None
        start = self.token_of(START)
        found = np.flatnonzero(prompt == start) if start is not None else NO_TOKENS
        at = int(found[-1]) if len(found) else max(0, len(prompt) - _HEAD_TOKENS)
        message = BEGUN.search(self._vocabulary.detokenize(prompt[at : at + _HEAD_TOKENS], special=True))
        return None if message is None else message[1]

    def ends_thinking(self, prompt: Tokens) -> bool:
        """Whether the template opened a thought at the end of a prompt."""
        if self.thought is None:
            return False
        return self._vocabulary.detokenize(prompt[-_HEAD_TOKENS:], special=True).rstrip().endswith(self.thought.opening)

    def begins_answer(self, prompt: Tokens) -> bool:
        """Whether what comes next is the answer itself: no thought to be ended, no header."""
        return self.channel(prompt) not in (None, "analysis") if self.has_channels else not self.ends_thinking(prompt)

    def begun(self, content: str) -> Sealed:
        """The beginning of an answer, as it stands after the prompt's text."""
        sealed = self._marks.sealed(content, by_model=True)
        return Sealed(f"{ANSWER}{sealed}") if content and self.has_channels else sealed

    def turn(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), choice: ToolChoice = AUTO, parallel: bool = True
    ) -> ReplyTurn:
        """Prepares an answer.

        Args:
            tools: what may be called.
            parallel: whether several calls in one answer are wanted.

        Raises:
            UsageError: a tool is named that is not there, or a call is required and there is no tool.
        """
        if choice.mode == "named":
            tools = [tool for tool in tools if tool.name == choice.name]
            if not tools:
                raise UsageError(f"The tool {choice.name!r} is to be called, but it is not among the tools.")
        if choice.mode == "required" and not tools:
            raise UsageError("A tool call is required, but there are no tools.")
        offered = () if choice.mode == "none" else tuple(tools)
        parallel = parallel and choice.mode != "named"  # the tool that is named is called once
        variables: dict[str, Any] = {}
        shown = list(messages)
        if self.renders_tools:
            if self.has_channels:
                shown = one_call_each(shown)
            if isinstance(self.form, ListForm):
                shown = [
                    replace(
                        message,
                        tool_calls=tuple(replace(call, id=_short_id(call.id)) for call in message.tool_calls),
                        tool_call_id=message.tool_call_id and _short_id(message.tool_call_id),
                    )
                    for message in shown
                ]
            if isinstance(self.form, JsonForm) and self.form.array and not self._renders_calls:
                shown = [self._with_calls_spelled(message, self.form) for message in shown]
            if offered:
                variables["tools"] = [tool.as_function() for tool in offered]
        else:
            shown = self._spelled(shown, offered)
        return ReplyTurn(self, tuple(shown), variables, offered, choice, parallel)

    @property
    def _marks(self) -> Marks:
        return marks_of(self._vocabulary.special_tokens, self._vocabulary.chat_template or "")

    def _spelled(self, messages: list[Message], tools: Sequence[Tool]) -> list[Message]:
        """Messages for a template that knows no tools: they, calls and results become plain content."""
        own = self.token_of("<tool_result>") is not None  # localspec's pair has learned its tools as signatures
        sealed = self._marks.sealed
        shown: list[Message] = []
        for message in messages:
            if message.tool_calls:
                message = self._with_calls_spelled(message, self._spelling)
            elif message.role == "tool" and own:
                text = Sealed(f"<tool_result>{sealed(message.content)}</tool_result>")
                message = replace(message, content=text)
            elif message.role == "tool":
                text = Sealed(f"<tool_response>\n{sealed(message.content)}\n</tool_response>")
                if shown and shown[-1].role == "user":  # many templates insist that roles alternate
                    text = Sealed(f"{sealed(shown.pop().content)}\n{text}")
                message = Message("user", text)
            shown.append(message)
        if tools:
            if own:
                keys = (", ".join(map(str, tool.parameters.get("properties", {}))) for tool in tools)
                lines = [f"{tool.name}({names})" for tool, names in zip(tools, keys, strict=True)]
                text = Sealed("Tools:\n" + "\n".join(map(sealed, lines)))
            else:
                told = [self._marks.sealed_in(tool.as_function()["function"]) for tool in tools]
                listed = "\n".join(json_text(one, ensure_ascii=False) for one in told)
                call = ToolCall("", "the function's name", '{"an argument": "its value"}')
                text = Sealed(
                    f"These functions can be called, one per line, with the JSON schema of their arguments:\n{listed}\n"
                    f"To call one, answer with nothing but\n{self._spelling.written([call])}\n"
                    "with one such line for every call. The results come back in <tool_response> tags. "
                    "Where no function helps, answer in plain words."
                )
            system = sealed(shown.pop(0).content) if shown and shown[0].role == "system" else ""
            shown.insert(0, Message("system", Sealed(f"{system}\n\n{text}") if system else text))
        return shown

    def _with_calls_spelled(self, message: Message, form: JsonForm | NamedForm) -> Message:
        """A message whose calls are part of its content."""
        if not message.tool_calls:
            return message
        sealed = self._marks.sealed
        calls = [ToolCall(call.id, sealed(call.name), sealed(call.arguments)) for call in message.tool_calls]
        content = Sealed(sealed(message.content, by_model=True) + form.written(calls))
        return replace(message, content=content, tool_calls=())


@dataclass(frozen=True, slots=True)
class ReplyTurn:
    """One answer that is wanted: what to show the model, and how to read what it says."""

    dialect: Dialect
    messages: tuple[Message, ...]
    """For the chat template."""
    variables: dict[str, Any]
    """More for the chat template: `tools`, where it knows them."""
    tools: tuple[Tool, ...]
    """What may be called."""
    choice: ToolChoice
    parallel: bool

    @property
    def forced(self) -> bool:
        return self.choice.mode in ("required", "named")

    @property
    def preserved(self) -> frozenset[int]:
        """Control tokens whose text the parser must see."""
        texts = list(self.dialect.form.markers) if self.tools or self.dialect.has_channels else []
        if self.dialect.thought is not None:
            texts += [self.dialect.thought.opening, self.dialect.thought.closing]
        tokens = {int(token) for text in texts for token in self.dialect.marked(text)}
        return frozenset(token for token in tokens if self.dialect.is_control(token))

    def parser(self, prompt: Tokens, lone: bool = True) -> AnswerParser:
        """A parser for the answer to a prompt (`Engine.chat_tokens` of `messages` and `variables`).
        `lone`: an answer that is one JSON object may be a call; not where JSON is asked for.
        """
        if self.dialect.has_channels:
            return HarmonyParser(within=self.dialect.channel(prompt), tools=self.tools, parallel=self.parallel)
        return self._parser(self.dialect.thought, self.dialect.ends_thinking(prompt), lone)

    def resume(
        self, prompt: Tokens, reasoning: str, content: str, thought_out: bool = False
    ) -> tuple[Tokens, AnswerParser]:
        """An answer that goes on, or begins, if nothing has been thought and said.

        Args:
            prompt: as for `parser`.
            reasoning: what it has thought; left out where the model has no marks for it.
            content: what it has said.
            thought_out: the thought ends where it is, and the answer begins.

        Returns:
            int32[n], the prompt with the answer so far as the model would have written it, and a parser for the rest.
        """
        marked, spelled = self.dialect.marked, self.dialect.spelled
        answers, parts = bool(content) or thought_out, [prompt]
        if self.dialect.has_channels:
            if reasoning:
                parts += [marked(HARMONY_THOUGHT.opening), spelled(reasoning)]
            if answers:
                parts += [marked((HARMONY_THOUGHT.closing + NEXT if reasoning else "") + ANSWER), spelled(content)]
            channel = "final" if answers else "analysis" if reasoning else None
            return np.concatenate(parts), HarmonyParser(within=channel, tools=self.tools, parallel=self.parallel)
        thought, inside = self.dialect.thought, self.dialect.ends_thinking(prompt)
        if thought is not None and reasoning:
            if not inside:
                parts += [marked(thought.opening), spelled("\n")]
            parts.append(spelled(reasoning))
            inside = True
        if thought is not None and inside and answers:
            parts += [spelled("\n"), marked(thought.closing), spelled("\n\n")]
            inside = False
        parts.append(spelled(content))
        return np.concatenate(parts), self._parser(None if answers else thought, inside)

    def _parser(self, thought: Thought | None, thinking: bool, lone: bool = True) -> ReplyParser:
        return ReplyParser(
            thought=thought,
            thinking=thinking,
            form=self.dialect.form if self.tools else None,
            tools=self.tools,
            parallel=self.parallel,
            lone=lone,
        )

    def grammar(self, prompt: Tokens, answer: dict[str, Any] | None = None) -> Grammar | None:
        """What the answer must follow, at once or from where a call begins; None = it is free. It is named after the
        tool that says most of it, and the schema `answer` beside it. Raises UsageError: a tool cannot be held to."""
        lark, trigger = self.lark(prompt, answer), None
        if lark is None:
            lark, trigger = self.lazily(prompt) or (None, None)
        if lark is None:
            return None
        names = [] if answer is None else ["JSON schema"]
        if self.tools:
            sizes = {tool.name: len(json.dumps(tool.parameters)) for tool in self.tools}
            largest = max(sizes, key=sizes.__getitem__)
            many = f"set of {len(self.tools)} tools, the largest of which is" if len(self.tools) > 1 else "tool"
            names.append(f"{many} {largest!r} with {sizes[largest]} characters of schema")
        return Grammar("lark", lark, " beside the ".join(names), trigger)

    def lark(self, prompt: Tokens, answer: dict[str, Any] | None = None) -> str | None:
        """The grammar that the answer must follow, in Lark's syntax as llguidance reads it; None = it is free. After a
        thought that the template opened the model may finish thinking first.

        Args:
            answer: JSON schema of an answer that is no call; None = any text.
        """
        free = "" if answer is None else f"answer\nanswer: {json_rule(answer)}\n"
        if self.tools:
            rules = self.dialect.form.lark(self.tools, self.parallel, self._mark)
            free = f"calls\n{rules}" if self.forced else free and f"calls | {free}{rules}"
        return self._whole(prompt, free) if free else None

    def lazily(self, prompt: Tokens) -> tuple[str, Trigger] | None:
        """The grammar of a call that the model need not make, and where it begins to hold; None = there is none.

        Only tools that are strict hold their arguments to a schema.
        """
        dialect, form = self.dialect, self.dialect.form
        opening = dialect.token_of(START if dialect.has_channels else form.openings[0])
        if not self.tools or self.forced or opening is None:
            return None
        calls = form.lark([tool.opened() for tool in self.tools], self.parallel, self._mark)
        if len(calls) > _LONGEST_LAZY and not any(tool.strict for tool in self.tools):
            return None
        if dialect.has_channels:
            said = NO_TOKENS
            if dialect.channel(prompt) is None:
                said = prompt[int(np.flatnonzero(prompt == opening)[-1]) :]
            return HARMONY.message(calls, self._mark), Trigger(opening, again=True, said=tuple(said.tolist()))
        if not calls.startswith(("calls: call", f"calls: {self._mark(form.openings[0])}")):
            return None
        thought = dialect.thought
        if thought is None:
            return f"start: calls\n{calls}", Trigger(opening)
        closing = dialect.token_of(thought.closing)
        if closing is None:
            return None
        around = (int(dialect.marked(thought.opening)[0]), closing)
        return f"start: calls\n{calls}", Trigger(opening, around, dialect.ends_thinking(prompt))

    def _whole(self, prompt: Tokens, start: str) -> str:
        if self.dialect.has_channels:
            return HARMONY.whole(self.dialect.channel(prompt), start, self._mark)
        thought = self.dialect.thought
        if thought is None or not self.dialect.ends_thinking(prompt):
            return f"start: {start}"
        closing = self._mark(thought.closing)
        if closing.startswith("<"):
            return f"start: /(?s:.*)/ {closing} /\\s*/ {start}"
        return f"start: thought /\\s*/ {start}\nthought[suffix={closing}]: /(?s:.*)/"

    def _mark(self, text: str) -> str:
        token = self.dialect.token_of(text)
        if token is None:
            return json.dumps(text)
        bracketed = text.startswith("<") and text.endswith(">")  # as llguidance has it
        return f"<[{token}]>" if bracketed or self.dialect.is_control(token) else json.dumps(text)


def _short_id(text: str) -> str:
    """Mistral's templates refuse ids that have not nine letters and digits."""
    import hashlib

    if re.fullmatch(r"[a-zA-Z0-9]{9}", text):
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:9]
