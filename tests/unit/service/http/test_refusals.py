"""Refusals over HTTP: names, places, and the deletion of studies."""

import asyncio
import sys
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import optuna
import pytest

import tuner
from storage import normalise_url, open_store
from storage.errors import StorageError
from storage.service.records import AuditEntry, Request, Role, SubmissionState
from storage.service.store import open_service_store
from tests import store_samples
from tests.cli.conftest import studies_alone
from tests.served import Served, serving
from tests.service_samples import START, submission
from tests.unit.service.http.conftest import Api
from tests.unit.storage.test_locks import another_process
from tuner import optimize
from tuner.service.http import studies
from tuner.service.http.access import Caller
from tuner.service.http.context import Places
from tuner.service.http.edge.rates import Rates
from tuner.service.http.edge.refusals import LINES, LINES_OF_STRANGERS, Refusals
from tuner.service.http.problems import Problem
from tuner.service.serve import _names
from tuner.settings.serve import ServeSettings

NOW = datetime(2026, 11, 27, tzinfo=UTC)
ADA = Caller("laptop", "ada", Role.USER)


class Written:
    """A store that keeps the entries of the audit log."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []
        self.fails = False

    def audit(self, entry: AuditEntry) -> None:
        if self.fails:
            raise StorageError("the disk is full")
        self.entries.append(entry)


class Edge:
    """Refusals with a clock, and requests for them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = Written()
        self.refusals = Refusals(self.store, lambda: NOW, Rates(clock=lambda: self.now))  # type: ignore[arg-type]

    def answer(self, status: int, address: str = "10.0.0.1", path: str = "/v1/x", **state: Any) -> None:
        scope = {"method": "POST", "path": path, "client": (address, 1), "state": state, "path_params": {"id": "first"}}
        asyncio.run(self.refusals.note(scope, status))

    @property
    def entries(self) -> list[AuditEntry]:
        return self.store.entries


def test_a_line_has_who_what_and_why_but_no_value() -> None:
    edge = Edge()
    edge.answer(422, problem=Problem(422, "env=LD_PRELOAD: no", "env", "LD_PRELOAD", "not allowed"), caller=ADA)
    (entry,) = edge.entries
    assert (entry.token, entry.owner, entry.action, entry.resource, entry.result) == (
        *("laptop", "ada", "POST /v1/x", "first", "refused"),
    )
    assert entry.detail == {"address": "10.0.0.1", "status": 422, "field": "env", "rule": "not allowed"}


def test_good_answers_and_mistakes_of_form_have_no_line() -> None:
    edge = Edge()
    edge.answer(200)
    edge.answer(404, problem=Problem(404, "there is none"))
    edge.answer(422)  # the body has another form
    edge.answer(401, path="/healthz")
    assert edge.entries == []


def test_a_stranger_gets_few_lines() -> None:
    edge = Edge()
    for _ in range(LINES.burst + 30):
        edge.answer(401)
    assert len(edge.entries) == LINES.burst
    edge.now += 1 / LINES.rate
    edge.answer(401)
    assert len(edge.entries) == LINES.burst + 1


def test_many_addresses_have_a_limit_together_and_owners_have_their_own() -> None:
    edge = Edge()
    for index in range(LINES_OF_STRANGERS.burst + 100):
        edge.answer(401, address=f"10.1.{index // 250}.{index % 250}")
    assert len(edge.entries) == LINES_OF_STRANGERS.burst
    edge.answer(403, caller=ADA)
    assert edge.entries[-1].owner == "ada"


def test_an_answer_does_not_need_the_database() -> None:
    edge = Edge()
    edge.store.fails = True
    edge.answer(401)
    assert edge.entries == []


def test_refused_requests_and_log_ins_of_a_server(api: Api) -> None:
    api.submit("secret", "ada")
    asked = [
        api.call("GET", "/v1/studies", None),
        api.call("GET", "/v1/audit", "ben"),
        api.call("GET", "/v1/studies/secret", "ben"),
        api.call("GET", "/v1/studies/unknown", "ben"),
        api.call("POST", "/v1/session", None, json={"token": f"tnr_{'0' * 64}"}),
        api.call("POST", "/v1/session", None, json={"token": api.tokens["ben"]}),
        api.submit("s", "ben", settings={"engine": "simulated", "trials": 10**12}),
    ]
    assert [each.status_code for each in asked] == [401, 403, 404, 404, 401, 204, 422]
    names = ("owner", "action", "resource", "result", "status", "address")
    assert [tuple(each[name] for name in names) for each in api.call("GET", "/v1/audit", "root").json()[::-1]] == [
        ("ada", "submit", "secret", "created", None, "testclient"),
        (None, "GET /v1/studies", "", "refused", 401, "testclient"),
        ("ben", "GET /v1/audit", "", "refused", 403, "testclient"),
        ("ben", "GET /v1/studies/{id}", "secret", "refused", 404, "testclient"),
        (None, "log in", "session", "refused", 401, "testclient"),
        ("ben", "log in", "session", "done", 204, "testclient"),
        ("ben", "POST /v1/studies", "", "refused", 422, "testclient"),
    ]


OWN = frozenset({"localhost", "127.0.0.1", "::1"})


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, OWN),
        ({"host": "127.0.0.2"}, OWN | {"127.0.0.2"}),
        ({"server_name": ("Tuner.example",)}, OWN | {"tuner.example"}),
        ({"host": "0.0.0.0"}, None),
        ({"tls_certificate": Path("c"), "tls_key": Path("k")}, None),
        ({"host": "0.0.0.0", "server_name": ("tuner.example",)}, OWN | {"0.0.0.0", "tuner.example"}),
        ({"public_url": "https://Tuner.example"}, OWN | {"tuner.example"}),
    ],
)
def test_the_names_of_a_server(settings: dict[str, object], names: frozenset[str] | None) -> None:
    assert _names(ServeSettings(**settings)) == names  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8600", 401), ("LOCALHOST", 401), ("[::1]:8600", 401), ("evil.test", 421), ("[", 421), ("", 421)],
)
def test_another_name_is_refused(api: Api, host: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = api.client.app.middleware_stack  # type: ignore[attr-defined]
    while not hasattr(guard, "_names"):
        guard = guard.app
    monkeypatch.setattr(guard, "_names", OWN)
    assert api.call("GET", "/v1/queue", None, headers={"Host": host}).status_code == status
    assert api.call("GET", "/healthz", None, headers={"Host": host}).status_code == 200


PACKAGE = Path(tuner.__file__).parent


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("TUNER_HOME", "/home/ada/.cache/tuner")
    return Places(Path("/srv/service"), "sqlite:////srv/data/tuner.db")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("in /srv/service/submissions/first/contents/a.yaml: no", "in submissions/first/contents/a.yaml: no"),
        ("the database sqlite:////srv/data/tuner.db: locked", "the database sqlite:///tuner.db: locked"),
        ('{"path": "/srv/data/artifacts/first/0"}', '{"path": "artifacts/first/0"}'),
        ("'/home/ada/.cache/tuner/x.json'", "'tuner/x.json'"),
        (f'File "{PACKAGE}/api.py", line 3', 'File "tuner/api.py", line 3'),
        (f"{sys.prefix}/bin/python", f"{Path(sys.prefix).name}/bin/python"),
        ("/srv/data/models/llama", "/srv/data/models/llama"),  # a user's model
        ("/other/srv/data/artifacts", "/other/srv/data/artifacts"),
        ("/srv/data/artifacts-old", "/srv/data/artifacts-old"),
        ("https://x.test/srv/data/artifacts", "https://x.test/srv/data/artifacts"),
    ],
)
def test_a_path_of_the_server_becomes_relative(places: Places, text: str, shown: str) -> None:
    assert places.hidden_text(text) == shown
    assert places.hidden(text.encode()) == shown.encode()


def test_a_masked_text_has_as_many_bytes(places: Places) -> None:
    text = b"in /srv/service/submissions/first: no"
    assert places.masked(text) == b"in *************submissions/first: no"
    assert len(places.masked(text)) == len(text)


def test_what_users_read_has_no_path(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.submit("first")
        served.start("first")
        folder = tmp_path / "submissions" / "first"
        served.end("first", SubmissionState.FAILED, f"no file {folder}/contents/x")
        folder.mkdir(parents=True)
        (folder / "driver.log").write_text(f"trace: {folder}/contents/x\n" * 3)
        texts = [read(served, path) for path in ("", "/log", "/log?offset=20&limit=50", "/events?follow=false")]
    for text in texts:
        assert str(tmp_path) not in text
        assert str(tmp_path)[:20] not in text
    assert "no file submissions/first/contents/x" in texts[0]
    assert texts[2] == texts[1][20:70]


def read(served: Served, path: str) -> str:
    headers = {"Authorization": f"Bearer {served.tokens['ada']}"}
    return httpx.get(f"{served.url}/v1/studies/first{path}", headers=headers, timeout=60).text


ID = "s"
"""The study whose lock `another_process` holds."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return normalise_url(str(tmp_path / "service.db"))


def run_study(url: str, folder: Path, seed: int = 0) -> int:
    """Run a simulated study of this id as its driver does, and return the number of its trials in Optuna."""
    output = folder / "submissions" / ID / "best_serve.sh"
    output.parent.mkdir(parents=True, exist_ok=True)
    few: dict[str, Any] = {"trials": 2, "confirm_rounds": 0, "baseline_repeats": 1, "num_prompts": 8}
    with studies_alone():
        optimize(study=ID, engine="simulated", **few, reduce=False, seed=seed, storage=url, output=output)
    return trials_in_optuna(url)


def leave_study(url: str, folder: Path) -> None:
    """Leave of a study of this id what a run leaves: its records, a trial of Optuna, a script and trials' files."""
    with closing(open_store(url)) as store:
        store.create_study(store_samples.study(ID))
        store.add_trial(store_samples.pending(0, study=ID))
    optuna.create_study(storage=url, study_name=ID).ask()
    for place in ("submissions", "artifacts"):
        (folder / place / ID).mkdir(parents=True, exist_ok=True)


def trials_in_optuna(url: str) -> int:
    """Return the number of the study's trials in Optuna's tables; 0 without the study."""
    names = optuna.get_all_study_names(url)
    return len(optuna.load_study(study_name=ID, storage=url).trials) if ID in names else 0


def delete(api: Api, url: str, folder: Path) -> None:
    """Delete the study, and check that nothing of it is left."""
    assert api.call("DELETE", f"/v1/studies/{ID}").status_code == 204
    assert trials_in_optuna(url) == 0
    assert not (folder / "submissions" / ID).exists()
    assert not (folder / "artifacts" / ID).exists()
    with closing(open_store(url)) as store:
        assert store.studies() == []
    assert api.call("GET", f"/v1/studies/{ID}").status_code == 404
    assert api.submit(ID).status_code == 201


def test_nothing_of_a_deleted_study_is_left(api: Api, url: str, tmp_path: Path) -> None:
    api.submit(ID)
    api.call("POST", f"/v1/studies/{ID}:cancel")
    leave_study(url, tmp_path)
    assert trials_in_optuna(url) == 1
    delete(api, url, tmp_path)


def test_with_postgresql_no_files_below_the_current_folder_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(studies, "study_lock", lambda *_: nullcontext())
    monkeypatch.setattr("tuner.study.optuna_storage.delete_optuna_study", lambda *_: None)
    own = tmp_path / "tuner_study" / "artifacts" / ID
    own.mkdir(parents=True)
    with closing(open_service_store(str(tmp_path / "service.db"))) as service:
        service.submit(submission(ID))
        service.request(ID, Request.CANCEL, START)
        studies.delete_study(ID, service, "postgresql+psycopg://host/db", tmp_path / "submissions" / ID)
    assert own.is_dir()


@pytest.mark.slow
def test_a_deleted_study_runs_anew(api: Api, url: str, tmp_path: Path) -> None:
    api.submit(ID)
    api.call("POST", f"/v1/studies/{ID}:cancel")
    first = run_study(url, tmp_path)
    assert first > 0
    assert (tmp_path / "artifacts" / ID).is_dir()
    delete(api, url, tmp_path)
    assert run_study(url, tmp_path, seed=1) == first


def test_a_study_that_a_process_runs_is_not_deleted(api: Api, url: str) -> None:
    api.submit(ID)
    api.call("POST", f"/v1/studies/{ID}:cancel")
    with another_process(url) as process:
        response = api.call("DELETE", f"/v1/studies/{ID}")
        assert response.status_code == 409
        assert f"process {process.pid}" in response.json()["detail"]
    assert api.call("DELETE", f"/v1/studies/{ID}").status_code == 204


def test_a_study_that_waits_is_not_deleted(api: Api) -> None:
    api.submit(ID)
    response = api.call("DELETE", f"/v1/studies/{ID}")
    assert (response.status_code, "cancel it first" in response.json()["detail"]) == (409, True)


def test_a_user_does_not_continue_a_study_of_the_command_line(api: Api, url: str, tmp_path: Path) -> None:
    leave_study(url, tmp_path)
    response = api.submit(ID)
    assert (response.status_code, response.json()["field"]) == (422, "id")
    assert api.submit(ID, token="root").status_code == 201
