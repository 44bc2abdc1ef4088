"""/tokenize, /detokenize and /apply-template, in llama-server's shapes, and how long a chat prompt would be."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from localspec.server.chat.chat_fields import ChatFields
from localspec.server.chat.fields import Body
from localspec.server.chat.prepare import chat_turn, check_text, prompt_length, with_engine
from localspec.server.http.errors import invalid
from localspec.server.http.route import ModelRoute

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

ROUTER = APIRouter(tags=["text"], route_class=ModelRoute)
MOST_TOKENS = 1 << 13
"""Tokens that a text may have at least for /tokenize, which takes longer ones than the context holds."""
_Result = TypeVar("_Result")


class TokenizeFields(Body):
    """POST /tokenize."""

    model: str | None = None
    content: str
    add_special: bool = Field(
        default=False, description="Begin with the begin-of-sequence token, if the model wants one."
    )
    parse_special: bool = Field(default=True, description="Read the text of special tokens as those tokens.")
    with_pieces: bool = Field(default=False, description="Say what each token stands for.")


class Piece(BaseModel):
    """A token and what it stands for."""

    id: int
    piece: str | list[int]
    """Text, or bytes that are no whole characters."""


class Tokenized(BaseModel):
    """Tokens of a text."""

    tokens: list[int] | list[Piece]


class DetokenizeFields(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


class Detokenized(BaseModel):
    """Text of tokens."""

    content: str


class Templated(BaseModel):
    """The prompt of a conversation."""

    prompt: str


class Counted(BaseModel):
    """How long a prompt is."""

    object: str = "response.input_tokens"
    input_tokens: int


@ROUTER.post("/tokenize", summary="Text to tokens")
async def tokenize(request: Request, fields: TokenizeFields) -> Tokenized:
    """llama-server's."""
    return await with_engine(request.app.state.service, fields.model, partial(_tokenized, fields))


def _tokenized(fields: TokenizeFields, engine: Engine) -> Tokenized:
    model = engine.loaded.model
    add_bos = fields.add_special and model.add_bos
    check_text(fields.content, engine, "content", special=fields.parse_special, room=MOST_TOKENS)
    tokens = model.tokenize(fields.content, special=fields.parse_special, add_bos=add_bos).tolist()
    if not fields.with_pieces:
        return Tokenized(tokens=tokens)
    return Tokenized(tokens=[Piece(id=token, piece=_piece(model.piece(token, special=True))) for token in tokens])


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


@ROUTER.post("/detokenize", summary="Tokens to text")
async def detokenize(request: Request, fields: DetokenizeFields) -> Detokenized:
    """llama-server's; special tokens are spelled."""
    return await with_engine(request.app.state.service, fields.model, partial(_detokenized, fields))


def _detokenized(fields: DetokenizeFields, engine: Engine) -> Detokenized:
    model = engine.loaded.model
    wrong = next((token for token in fields.tokens if not 0 <= token < model.n_vocab), None)
    if wrong is not None:
        what = f"There is no token {str(wrong)[:24]}; ids are 0 to {model.n_vocab - 1}."
        raise invalid(what, "tokens", "invalid_value")
    return Detokenized(content=model.detokenize(fields.tokens, special=True))


@ROUTER.post("/apply-template", summary="Conversation to prompt text")
async def apply_template(request: Request, fields: ChatFields) -> Templated:
    """The text the model would be shown; takes a chat request and answers nothing."""

    def work(engine: Engine) -> Templated:
        _, tokens = chat_turn(fields, engine)
        return Templated(prompt=engine.loaded.model.detokenize(tokens, special=True))

    return await with_engine(request.app.state.service, fields.model, work)


@ROUTER.post("/v1/chat/completions/input_tokens", summary="Length of a conversation's prompt")
@ROUTER.post("/chat/completions/input_tokens", include_in_schema=False)
async def input_tokens(request: Request, fields: ChatFields) -> Counted:
    """Tokens the model would be shown; takes a chat request and answers nothing."""
    return Counted(input_tokens=await prompt_length(request.app.state.service, fields))
