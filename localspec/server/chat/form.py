"""The form an answer must have, by whichever field asks for it: a JSON schema, a grammar, an expression, a choice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.grammar.lazy import Trigger
from localspec.server.chat.fields import Body, ResponseFormat
from localspec.server.http.errors import invalid, not_json

MOST_WAYS = 1024
"""Texts of a choice."""
Ways = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MOST_WAYS)]
Schema = dict[str, Any]


class StructuredOutputs(Body):
    """vLLM's object for the form of an answer: one of these."""

    json_: Schema | str | None = Field(default=None, alias="json", description="A schema, or its text.")
    json_object: bool | None = None
    regex: str | None = Field(default=None, description="The whole answer; Rust's syntax.")
    choice: Ways | None = None
    grammar: str | None = Field(default=None, description="GBNF text.")


class FormFields(Body):
    """Fields that ask for a form; at most one may."""

    response_format: ResponseFormat | None = None
    json_schema: Schema | None = Field(default=None, description="As response_format with a schema.")
    grammar: str | None = Field(default=None, description="GBNF text.")
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = Field(default=None, description="A schema, or its text.")
    guided_regex: str | None = Field(default=None, description="The whole answer; Rust's syntax.")
    guided_choice: Ways | None = None
    guided_grammar: str | None = Field(default=None, description="GBNF text.")

    def form(self) -> Form | None:
        """What is asked for; None = nothing.

        Raises:
            ApiError: 400, several fields ask for a form, or no schema is given.
        """
        forms = self._forms()
        if len(forms) > 1:
            names = " and ".join(form.field for form in forms)
            raise invalid(f"{names} exclude each other.", forms[0].field, "invalid_value")
        return forms[0] if forms else None

    def _forms(self) -> list[Form]:
        forms = []
        for name in ("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"):
            value = getattr(self, name)
            if value is not None:
                forms.append(_form(name, name.removeprefix("guided_"), value))
        if self.structured_outputs is not None:
            where = "structured_outputs"
            if self.structured_outputs.json_object:
                forms.append(Form("schema", {"type": "object"}, f"{where}.json_object"))
            for name, own in (("json", "json_"), ("regex", "regex"), ("choice", "choice"), ("grammar", "grammar")):
                value = getattr(self.structured_outputs, own)
                if value is not None:
                    forms.append(_form(f"{where}.{name}", name, value))
        if self.response_format is not None and self.response_format.type != "text":
            forms.append(Form("schema", _schema_of(self.response_format), "response_format"))
        return forms


@dataclass(frozen=True, slots=True)
class Form:
    """One form that is asked for."""

    kind: Literal["schema", "gbnf", "regex", "lark"]
    value: Any
    """A JSON schema as an object, or the text of the others."""
    field: str
    """Which field asks."""
    trigger: Trigger | None = None
    """Where it begins to hold; None = at once."""
    called: str = ""
    """What the client knows it as, for messages; "" = by the name of its kind."""

    @property
    def schema(self) -> Schema | None:
        """The JSON schema; None = it is none."""
        return self.value if self.kind == "schema" else None


def _form(field: str, kind: str, value: Any) -> Form:
    if kind == "grammar":
        return Form("gbnf", value, field)
    if kind == "regex":
        return Form("regex", value, field)
    if kind == "choice":
        return Form(
            "lark", "start: " + " | ".join(json.dumps(way, ensure_ascii=False) for way in value), field, called="choice"
        )
    return Form("schema", _parsed(field, value) if isinstance(value, str) else value, field)


def _parsed(field: str, text: str) -> Schema:
    from pydantic_core import from_json

    try:
        schema = from_json(text)
    except ValueError as error:
        raise not_json(field, error, field) from None
    if not isinstance(schema, dict):
        raise invalid(f"{field} is no JSON object.", field, "invalid_value")
    return schema


def _schema_of(wanted: ResponseFormat) -> Schema:
    if wanted.type == "json_object":
        return {"type": "object"} if wanted.schema_ is None else wanted.schema_
    schema = wanted.json_schema.schema_ if wanted.json_schema is not None else None
    if not isinstance(schema, dict):
        what = "response_format is json_schema without json_schema.schema."
        raise invalid(what, "response_format", "missing_required_parameter")
    return schema
