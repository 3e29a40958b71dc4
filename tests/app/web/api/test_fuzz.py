"""Schemathesis against the running API: no server error, and no response that its OpenAPI document does not allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from storage.projects.tokens import create_token
from tests.app import sample_store
from tests.app.web.api.servers import serving

STARTS_A_PROCESS = {"add_items", "export", "export_model", "predict_files", "predict_items", "add_embeddings"}


@pytest.fixture
def address(page_store, monkeypatch) -> Iterator[tuple[str, str]]:
    """The address of a server with two projects, one of them with a finished round, and a token for it."""
    monkeypatch.setenv("WINNOW_API_RATE", "1000000")
    sample_store.finish_round(page_store, sample_store.audio_project(page_store, n=6), 2)
    sample_store.image_project(page_store, n=3)
    _, token = create_token(page_store, "fuzz", "owner")
    with serving() as base:
        yield base, token


@pytest.fixture
def checks() -> list[Any]:
    """The checks of every response. Schemathesis is imported here, because its import takes two seconds, and otherwise
    every test process would import it when it collects this file."""
    from schemathesis import checks
    from schemathesis.specs.openapi import checks as openapi

    return [
        checks.not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_headers_conformance,
        openapi.response_schema_conformance,
        openapi.negative_data_rejection,
        openapi.unsupported_method,
        openapi.ignored_auth,
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_requests_get_documented_answers(address, checks):
    import schemathesis

    base, token = address
    schema = schemathesis.openapi.from_url(f"{base}/api/v1/openapi.json")
    headers = {"Authorization": f"Bearer {token}"}
    tried = []
    for result in schema.get_all_operations():
        operation = result.ok()
        name = operation.definition.raw["operationId"]
        fuzz(operation, headers, 3 if name in STARTS_A_PROCESS else 12, checks)
        tried.append(name)
    assert len(tried) == len(set(tried)) > 25


def fuzz(operation, headers: dict[str, str], n_examples: int, checks: list[Any]) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=n_examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case) -> None:
        case.call_and_validate(headers=headers, checks=checks)

    check()
