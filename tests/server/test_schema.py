"""Requests made from our own OpenAPI document: never a 5xx, never an answer that the document does not describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CheckFunction
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from localspec.runtime.pool import Pool
from localspec.server.http.app import create_app
from tests.server.live import Live, running

CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def document(corners: bool) -> schemathesis.BaseSchema:
    """The document; no model is needed for it. `corners`: also every single field at its limits."""
    config = SchemathesisConfig.from_dict({"phases": {"coverage": {"enabled": corners}}})
    return schemathesis.openapi.from_dict(create_app(Pool(settings={})).openapi(), config=config)


FEW, MANY = document(corners=False), document(corners=True)


@pytest.fixture(scope="module")
def small() -> Iterator[Live]:
    """A server whose context is so small that every answer is short."""
    pool = Pool(settings={"slots": 2, "context": 48})
    with running(pool) as server:
        yield server
    pool.close()


@FEW.parametrize()
@settings(max_examples=8, suppress_health_check=QUIET, derandomize=True, phases=[Phase.generate])
def test_answers_are_as_the_document_says(case: schemathesis.Case[Any], small: Live) -> None:
    case.call_and_validate(base_url=small.url, checks=CHECKS, timeout=60)


@pytest.mark.trial
@MANY.parametrize()
@settings(max_examples=50, suppress_health_check=QUIET)
def test_answers_are_as_the_document_says_at_length(case: schemathesis.Case[Any], small: Live) -> None:
    case.call_and_validate(base_url=small.url, checks=CHECKS, timeout=60)
