"""Requests made from the router's own description of itself: it never fails on one, and answers as it says."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi import checks

from raw_http import ADMIN, CLIENT, BadWorkers, Router, asked, request

pytestmark = [
    pytest.mark.integration,
    # Of jsonschema and others that schemathesis uses, not of what is tested.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

EXAMPLES = 20
ENDLESS = ("/stream",)
"""Answers that do not end."""
ALIKE = (
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
"""Passed on exactly as `/v1/embeddings`."""
OF_WORKERS = {502, 503, 504}
"""What a worker's failure may become."""

load_all_checks()


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    log = tmp_path_factory.mktemp("router") / "log"
    with contextlib.closing(BadWorkers(2, {})) as workers:
        made = Router(workers.urls, ("proxy.unknown_models=pass",), log)
        try:
            yield made
        finally:
            said = made.close()
    assert "Traceback" not in said, said


@pytest.fixture(scope="module")
def described(router: Router) -> BaseSchema:
    url = f"http://127.0.0.1:{router.port}"
    found = schemathesis.openapi.from_url(f"{url}/openapi.json", headers={"Authorization": f"Bearer {ADMIN}"})
    return found.exclude(path=[*ENDLESS, *ALIKE])


def never_fails(_context: CheckContext, response: Response, case: Case[Any]) -> None:
    """No failure of the router itself, and those of workers only where the description has them."""
    assert response.status_code < 500 or (
        response.status_code in OF_WORKERS and str(response.status_code) in case.operation.definition.raw["responses"]
    ), response.text


CHECKS = [
    never_fails,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_it_answers_as_it_says(described: BaseSchema, mode: GenerationMode, subtests: pytest.Subtests) -> None:
    for found in described.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body and not operation.query:
            continue  # there is nothing to get wrong

        @SETTINGS
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case[Any]) -> None:
            token = CLIENT if case.path.startswith("/v1/") else ADMIN
            case.call_and_validate(
                checks=CHECKS, headers={"Authorization": f"Bearer {token}"}, timeout=10, allow_redirects=False
            )

        with subtests.test(operation.label):
            ask()


def test_it_is_as_well_as_before(router: Router) -> None:
    assert router.send(request(asked())).status == 200
    assert router.get("/stats").status == 200
