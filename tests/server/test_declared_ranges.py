"""A number that the engine would refuse is refused by the server with the same sentence."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from localspec.errors import UsageError
from localspec.options import Options, SamplingParams
from localspec.server.chat.fields import CompletionFields
from localspec.server.http.output import ApiError, from_validation


def refused(fields: dict[str, object]) -> ApiError:
    with pytest.raises(ValidationError) as found:
        CompletionFields.model_validate({"prompt": "x", **fields})
    return from_validation(found.value.errors())


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -2), ("seed", 2**64), ("max_tokens", -7), ("max_tokens", 1.5), ("min_tokens", -1), ("min_tokens", "2")],
)
def test_options(name: str, value: object) -> None:
    with pytest.raises(UsageError) as ours:
        Options().having({name: value})
    error = refused({name: value})
    assert error.message == ours.value.message
    assert error.param == name


@pytest.mark.parametrize(("name", "value"), [("top_k", -2), ("temperature", -0.5), ("top_p", 1.5)])
def test_sampling(name: str, value: float) -> None:
    with pytest.raises(UsageError) as ours:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert refused({name: value}).message == ours.value.message


def test_a_field_of_an_object_is_called_by_its_place() -> None:
    error = refused({"speculative": {"max_draft_tokens": 65}})
    assert error.message == "speculative.max_draft_tokens is 65; it must be between 0 and 64."
