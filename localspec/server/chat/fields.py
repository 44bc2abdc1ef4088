"""Fields that the APIs share, and what they mean to the engine.

A field that is not listed is ignored or refused, as `reading.BodyReading` says; those of `Harmless` are accepted and
not used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, create_model, model_validator

from localspec.options import LIMITS
from localspec.server.http.reading import BodyReading, renamed
from localspec.settings import Setting, numbers_of
from localspec.types import SamplingParams

MOST_STOPS = 64
"""Stop strings in one request; each is searched for in every new text."""
MOST_CHOICES = 128
"""Choices of one request (OpenAI's limit)."""

MOST_ITEMS = 10_000
"""Messages, items or parts in one list: far more than conversations have, and validated in less than 0.1 s."""
MOST_TOOLS = 1024
"""Tools of one request, and calls of one message."""
MOST_BIASES = 4096
"""Biased tokens or texts of one request; each text is made into tokens."""

_Pair = Annotated[list[int | str | float | bool], Field(min_length=2, max_length=3)]
LogitBias: TypeAlias = (
    Annotated[dict[str, float | bool], Field(max_length=MOST_BIASES)]
    | Annotated[list[_Pair], Field(max_length=MOST_BIASES)]
)


Json: TypeAlias = dict[str, Any]
"""A JSON object, read or to be written."""


class Body(BaseModel):
    """A JSON object whose fields are of the type they should have. Unknown ones are refused, unless a `BodyReading`,
    which is the context of the validation, takes them out first."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)
    other_names: ClassVar[Mapping[str, str]] = {}
    """Names that other servers have for fields, and ours."""
    ignored_switches: ClassVar[frozenset[str]] = frozenset()
    """Fields that are not known and would change the answer, and that are ignored all the same."""
    tool_types: ClassVar[frozenset[str]] = frozenset()
    """Types of tools that clients run; others are for servers that run tools themselves. Empty = there are no tools."""

    @model_validator(mode="before")
    @classmethod
    def _taken(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        if cls.other_names:
            data = renamed(data, cls.other_names)
        data = {name: _whole(value) if name in _whole_numbers(cls) else value for name, value in data.items()}
        if not isinstance(info.context, BodyReading):
            return data
        data = info.context.taken(data, cls)
        return info.context.with_tools(data, cls.tool_types) if cls.tool_types else data


@cache
def _whole_numbers(kind: type[Body]) -> frozenset[str]:
    """Names of the fields that are whole numbers."""
    return frozenset(field.alias or name for name, field in kind.model_fields.items() if _is_whole(field.annotation))


def _is_whole(annotation: Any) -> bool:
    kinds = get_args(annotation) or (annotation,)
    return int in kinds and float not in kinds


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 20.0 is 20, as some clients write it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Unused = Annotated[Any, Field(description="Accepted and not used.")]
"""A field that clients send and that changes nothing here."""


class Harmless(Body):
    """Fields of OpenAI's that change nothing here and that clients send all the same."""

    user: Unused = None
    store: Any = Field(default=None, description="Accepted and not used: nothing is kept.")
    metadata: Unused = None
    service_tier: Unused = None
    safety_identifier: Unused = None
    prompt_cache_key: Any = Field(
        default=None, description="Accepted and not used: prefixes are found by their tokens."
    )
    prompt_cache_retention: Unused = None
    cache_prompt: bool | None = Field(
        default=None, description="Accepted and not used: what is cached is reused, and the text does not depend on it."
    )


class StreamOptions(Body):
    """What a stream brings besides text."""

    include_usage: bool | None = Field(default=None, description="A last chunk with `usage` and no choices.")
    include_obfuscation: Unused = None


def limit(name: str, description: str) -> Any:
    """The field of a number of `Options` in a body; null = the default."""
    return _ranged(LIMITS[name], description)


def _ranged(row: Setting, description: str) -> Any:
    least, most = min((row.declared.least, *row.declared.stands_for)), row.declared.most
    return Field(default=None, ge=least, le=None if most == math.inf else most, description=description)


class Speculative(Body):
    """How drafts are made for this request. The text does not depend on it."""

    enabled: bool = Field(default=True, description="false = plain decoding.")
    drafter: str | None = Field(default=None, description="Which drafter guesses, by name; null = the plan chooses.")
    max_draft_tokens: int | None = limit("max_draft_tokens", "Longest draft; null = what pays.")
    force: bool = Field(
        default=False, description="Draft in every pass, paying or not, as `serve --drafter NAME` does."
    )


class TextPart(Body):
    """A piece of text."""

    type: Literal["text"]
    text: str


class Prediction(Body):
    """Text that is expected in the answer: where it comes true it costs almost nothing."""

    type: Literal["content"] = "content"
    content: str | Annotated[list[TextPart], Field(max_length=MOST_ITEMS)]


class JsonSchema(Body):
    """A JSON schema with its name."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = Field(default=None, description="The schema is always kept to.")


class ResponseFormat(Body):
    """What form the answer must have."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(
        default=None, alias="schema", description="With json_object, as llama-server has it."
    )


SAMPLING = numbers_of(SamplingParams)
"""What is declared of drawing tokens."""


if TYPE_CHECKING:

    class _Declared(Body):
        """A field for each of `SAMPLING`, by its name in the APIs."""

else:
    _Declared = create_model(
        "_Declared", __base__=Body, **{row.api_name: (row.kind | None, _ranged(row, row.doc)) for row in SAMPLING}
    )


class SamplingFields(_Declared):
    """How tokens are drawn. Defaults are llama.cpp's."""

    other_names: ClassVar[Mapping[str, str]] = {
        other: row.api_name for row in SAMPLING for other in row.declared.other_names
    }
    seed: int | None = limit("seed", "Equal seeds give equal text; -1 = random.")
    dry_sequence_breakers: list[str] | None = Field(default=None, max_length=64)
    logit_bias: LogitBias | None = Field(default=None, description="By token id or text; false bans.")
    min_tokens: int | None = limit("min_tokens", "Nothing ends the answer before so many tokens.")

    def sampling(self) -> dict[str, Any]:
        """What is given of `SamplingParams`, logit bias apart."""
        found: dict[str, Any] = {}
        for row in SAMPLING:
            value = getattr(self, row.api_name)
            if value is not None:
                found[row.name] = row.meant(value)
        if self.dry_sequence_breakers is not None:
            found["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        return found

    def drawn(self) -> dict[str, Any]:
        """These fields of any API, by name."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields}


def joined(content: str | list[TextPart]) -> str:
    """Text in one piece; parts become lines."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
