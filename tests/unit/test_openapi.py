"""The description of the HTTP surface."""

import re
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from kvevents.server import Settings, create_app
from kvevents.server.configuration import WorkerSettings
from kvevents.server.control import Control
from kvevents.server.endpoints import endpoints
from kvevents.server.openapi import Operation, describe
from kvevents.server.watch import Watch


@pytest.fixture(scope="module")
def app() -> Starlette:
    return create_app(Settings())


@pytest.fixture(scope="module")
def table(app: Starlette) -> list[Operation]:
    service = app.state.service
    return endpoints(service, Control(service), Watch(service))


@pytest.fixture(scope="module")
def document(table: list[Operation]) -> dict[str, Any]:
    return describe(table)


def test_every_route_is_described_and_nothing_else(app: Starlette, document: dict[str, Any]) -> None:
    served = set()
    for route in app.routes:
        assert isinstance(route, Route)
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        served |= {(path, method.lower()) for method in (route.methods or {"GET"}) - {"HEAD"}}
    passed_on = {(path, "post") for path in (*Settings().proxy.paths, "/route", "/query")}  # by the data plane
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == {pair for pair in served if (pair[0], "post") not in passed_on} | passed_on


def test_every_operation_says_who_may_and_what_comes(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert "`" not in operation["summary"][:1], where
            assert any(status.startswith(("2", "3")) for status in operation["responses"]), where
            assert "default" in operation["responses"], where
            assert bool(operation["security"]) == (operation["tags"][0] in {"client", "admin"}), where
            names = set(re.findall(r"\{(\w+)\}", path))
            assert names == {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}, where
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)


def test_only_probes_and_the_login_are_without_a_token(table: list[Operation]) -> None:
    assert {one.path for one in table if one.scope == "open"} == {"/health", "/ready"}
    assert {one.path for one in table if one.scope == "page"} == {"/dashboard/{name:path}", "/login", "/logout"}
    assert all((one.scope == "client") == one.path.startswith("/v1/") for one in table)


def test_a_worker_is_described_as_it_is_taken(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["WorkerSettings"]
    assert set(schema["properties"]) == set(WorkerSettings.__struct_fields__) - {"api_key"}
    assert schema["required"] == ["url"]
    assert schema["additionalProperties"] is False
    assert all(one["description"] for one in schema["properties"].values())
    pattern = schema["properties"]["url"]["pattern"]
    for url in ("http://127.0.0.1:30000", "https://host/", "http://[::1]:80"):
        assert re.search(pattern, url)
        WorkerSettings(url=url)
    assert not re.search(pattern, "http://user:password@host")


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [one for inner in value.values() for one in references(inner)]
        return [one for inner in value for one in references(inner)] if isinstance(value, list) else []

    found = references(document)
    assert found
    assert {one.removeprefix("#/components/schemas/") for one in found} <= set(schemas)
