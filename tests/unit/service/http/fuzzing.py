"""Generated requests over the OpenAPI description, against a service that has something of each kind."""

import copy
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import schemathesis.openapi
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from records.trials import Provenance
from storage import Store, normalise_url, open_store
from storage.service.records import Request, Role, SubmissionState
from storage.service.store import open_service_store
from tests import store_samples
from tests.served import DEVICES, DRIVER, Served
from tests.unit.service.http.conftest import HOST
from tests.unit.service.http.optimizations.api import LOSS, SPACE
from tuner.service.asked.rules import ServerRules
from tuner.service.asked.settings import names
from tuner.service.http.app import create_app
from tuner.service.http.context import ServiceContext
from tuner.service.http.edge.rates import Rates
from tuner.service.http.problems import MEDIA_TYPE
from tuner.use_cases.files import add_study

STUDY = Path(__file__).parents[3] / "data" / "simulated-study.jsonl.gz"
S = SubmissionState

SUBMISSIONS = ["first", *(state.value.lower() for state in S if state is not S.DONE), "bens", "shared"]
OPTIMIZATIONS = ["mine", "bens"]
EXISTING: dict[tuple[str, str], list[Any]] = {
    ("/v1/studies/", "id"): SUBMISSIONS,
    ("/v1/optimizations/", "id"): OPTIMIZATIONS,
    ("/v1/optimizations/", "number"): [0, 1, 2, 3],
    ("/v1/tokens/", "name"): ["spare", "spent"],
    ("/v1/owners/", "name"): ["ada", "ben"],
    ("/export", "format"): ["script", "kubernetes", "compose", "command"],
    ("/export", "trial"): [0, 1],
    ("", "study"): ["first", "stopped", "shared", "bens"],
    ("", "other"): ["first", "stopped", "shared"],
    ("", "after"): [0, 1, 3],
}
"""Values that exist, by a part of the path and the parameter."""

ANYTHING: dict[str, Any] = {"type": ["string", "number", "boolean", "array", "object", "null"]}
VALUES: dict[str, Any] = {
    "engine": {"enum": ["simulated", "auto", "vllm", 1]},
    "preset": {"enum": ["qwen2.5-0.5b-t4", "nothing"]},
    "gpu": {"enum": ["t4", "h100", "abacus"]},
    "trials": {"type": "integer", "minimum": -1, "maximum": 100},
    "num_prompts": {"type": "integer", "minimum": -1, "maximum": 30},
    "slo": {"type": "array", "items": {"enum": ["p99_ttft_ms<100", "success_rate>=1", "x", ""]}},
    "workload": {"type": "array", "items": {"enum": ["classes: {a: {input: 10, output: 5}}\n", "a: [", "", 5]}},
}
"""Schemas of settings that have a chance to be accepted; those of the others allow anything."""

CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)


def url_of(folder: Path) -> str:
    return normalise_url(str(folder / "t.db"))


def make_world(folder: Path) -> dict[str, str]:
    """Fill a database: a simulated study that was run, a submission of each state, and optimizations.

    Returns:
        The secrets of tokens by their names.
    """
    url = url_of(folder)
    with closing(open_service_store(url)) as service, closing(open_store(url)) as store:
        served = Served("", url, folder, service, store)
        for name, owner, role in (("ada", "ada", Role.USER), ("ben", "ben", Role.USER), ("root", "root", Role.ADMIN)):
            served.add_token(name, owner, role)
        for name in ("spare", "spent"):
            served.add_token(name, "ada", Role.VIEWER)
        for id in SUBMISSIONS:
            served.submit(id, "ben" if id in ("bens", "shared") else "ada", shared=id == "shared")
        _advance(served)
        _studies(store)
        _optimizations(served)
        log = folder / "submissions" / "first" / "driver.log"
        log.parent.mkdir(parents=True)
        log.write_bytes(b"a line\n\xff\x00 not UTF-8\n")
        return served.tokens


def _advance(served: Served) -> None:
    """Bring each submission to the state that its id names."""
    for id in ("running", "stopping", "concluding", "stopped", "cancelled", "failed", "first"):
        served.start(id)
    served.service.request("stopping", Request.STOP, served.now())
    served.service.concluding("concluding", DRIVER, served.now())
    for id, state in (("stopped", S.STOPPED), ("cancelled", S.CANCELLED), ("failed", S.FAILED), ("first", S.DONE)):
        served.end(id, state, "why")


def _studies(store: Store) -> None:
    """Store a simulated study that was run: whole, twice; and parts of it with a failed and a pending trial."""
    lines = [json.loads(line) for line in gzip.decompress(STUDY.read_bytes()).splitlines()]
    add_study(store, lines)
    record, trials = store.study("first"), store.trials("first")
    assert record is not None
    for id, kept in (("shared", len(trials)), ("stopped", 4), ("running", 1), ("failed", 0)):
        store.create_study(replace(record, name=id, conclusion=record.conclusion if id == "shared" else None))
        for trial in trials[:kept]:
            store.add_trial(replace(trial, study=id, outcome=None, verdict=None))
            assert trial.outcome is not None
            store.finish_trial(id, trial.number, trial.round, trial.outcome, trial.verdict)
        if id != "shared":
            for number in (50, 51):
                store.add_trial(replace(trials[0], study=id, number=number, outcome=None, verdict=None))
            store.finish_trial(id, 50, 0, replace(store_samples.failed(), provenance=Provenance.SIMULATED), None)


def _optimizations(served: Served) -> None:
    """Create optimizations: with trials that succeeded, that were infeasible and that run; and without any."""
    headers = {name: {"Authorization": f"Bearer {served.tokens[name]}"} for name in ("ada", "ben")}
    with client_of(served.folder) as client:
        for id in OPTIMIZATIONS:
            body = {"id": id, "space": SPACE, "objectives": LOSS, "sampler": "random"}
            who = headers["ben" if id == "bens" else "ada"]
            assert client.post("/v1/optimizations", json=body, headers=who).status_code == 201
            path = f"/v1/optimizations/{id}"
            assert client.post(f"{path}:suggest", json={"client_id": "c", "count": 4}, headers=who).status_code == 200
            values = {"client_id": "c", "metrics": {"loss": 0.5}}
            assert client.post(f"{path}/trials/0:complete", json=values, headers=who).status_code == 200
            why = {"client_id": "c", "reason": "no memory"}
            assert client.post(f"{path}/trials/1:complete", json=why, headers=who).status_code == 200


@contextmanager
def client_of(folder: Path) -> Iterator[TestClient]:
    """Serve the database of a folder."""
    url = url_of(folder)
    with closing(open_service_store(url)) as service, closing(open_store(url)) as store:
        app = create_app(ServiceContext(service, store, url, folder, DEVICES, ServerRules()), Rates(limited=False))
        with TestClient(app, base_url=HOST, raise_server_exceptions=False) as client:
            yield client


def description(app: FastAPI) -> dict[str, Any]:
    """Return the application's own description, whose parameters and settings prefer what exists."""
    document: dict[str, Any] = copy.deepcopy(app.openapi())
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                _prefer(path, parameter)
    known = {name: VALUES.get(name, ANYTHING) for name in names()}
    schemas = document["components"]["schemas"]
    for name in ("NewStudy", "WhatIf"):
        schemas[name]["properties"]["settings"] |= {"properties": known, "additionalProperties": ANYTHING}
    space = schemas["NewOptimization"]["properties"]["space"]
    space["anyOf"] = [{"enum": [SPACE, "parameters: {}", "a: ["]}, {"type": "object", "additionalProperties": True}]
    for body in ("SuggestBody", "CompleteBody"):
        _choose(schemas[body]["properties"], "client_id", ["c", "d"])
    _choose(schemas["Session"]["properties"], "token", [f"tnr_{'0' * 64}"])
    return document


def _prefer(path: str, parameter: dict[str, Any]) -> None:
    for (part, name), values in EXISTING.items():
        if parameter["name"] == name and part in path:
            schema = parameter["schema"]
            holder = schema if schema.get("type") == "array" else parameter
            _choose(holder, "items" if holder is schema else "schema", values)
            return


def _choose(holder: dict[str, Any], key: str, values: Sequence[Any]) -> None:
    """Replace a schema by values; the generator of wrong requests finds others by itself."""
    holder[key] = {"enum": [*values]}


def operations(folder: Path) -> list[str]:
    """Return the operations of the API as `METHOD PATH`."""
    with client_of(folder) as client:
        paths = app_of(client).openapi()["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


def app_of(client: TestClient) -> FastAPI:
    app = client.app
    assert isinstance(app, FastAPI)
    return app


def described(client: TestClient) -> Any:
    """Return schemathesis' view of the application's description."""
    load_all_checks()
    return schemathesis.openapi.from_dict(description(app_of(client)))


def attack(client: TestClient, schema: Any, label: str, secret: str, examples: int, number: int) -> int:
    """Send generated requests of one operation, check each answer, and return their number.

    Raises:
        Exception: schemathesis' own, if an answer is a server error or not as described.
    """
    checks = CHECKS.get_by_names([*CHECKED])
    method, path = label.split(" ")
    modes = [schema[path][method].as_strategy(generation_mode=mode) for mode in GenerationMode]
    answers: list[int] = []

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(modes))
    def send(case: Any) -> None:
        if path.endswith("/events") and _follows(case.query):
            case.query = {**case.query, "follow": "false"}  # it would not end
        sent = case.as_transport_kwargs(base_url=HOST, headers={"Authorization": f"Bearer {secret}"})
        if "data" in sent:
            sent["content"] = sent.pop("data")
        sent.pop("cookies", None)
        answer = client.request(**sent)
        answers.append(answer.status_code)
        case.validate_response(answer, checks=checks)
        assert answer.is_success or answer.headers["content-type"] == MEDIA_TYPE

    send()
    return len(answers)


def _follows(query: Mapping[str, Any]) -> bool:
    try:
        return TypeAdapter(bool).validate_python(query.get("follow", True))
    except ValidationError:
        return False
