"""The calls against a real API: every method, and errors as exceptions. The clients differ in how they wait only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.service.records import SubmissionState
from tests import store_samples
from tests.served import Served
from tests.unit.client.conftest import MakeClient
from tuner.client.client import AsyncClient, Client
from tuner.client.failures import RefusedError
from tuner.errors import SettingError, UserError


@pytest.fixture
def kind() -> str:
    return "sync"


def test_the_methods_of_both_clients_are_described() -> None:
    signature = inspect.signature(Client.export)
    assert [*signature.parameters] == ["self", "id", "path", "format", "trial"]
    assert "number of the trial; None: the winner" in (inspect.getdoc(AsyncClient.export) or "")
    assert inspect.signature(AsyncClient.submit).parameters["trials"].default == 60
    bound = Client("http://127.0.0.1:1", "tnr_a").export
    assert [*inspect.signature(bound).parameters] == ["id", "path", "format", "trial"]


def test_a_study_is_submitted_once(ada: Any, make_client: MakeClient, served: Served) -> None:
    found = ada.submit(id="once", engine="simulated", trials=4, shared=True, priority=3)
    assert (found.id, found.owner, found.state, found.kind) == ("once", "ada", SubmissionState.QUEUED, "simulated")
    assert found.settings == {"engine": "simulated", "trials": 4}
    assert (found.progress, found.started_at, found.ended, found.shared, found.priority) == (None, None, False, True, 3)
    assert ada.submit(id="once", engine="simulated", trials=4).created_at == found.created_at
    with pytest.raises(RefusedError, match="another study 'once'") as error:
        ada.submit(id="once", engine="simulated", trials=5)
    assert error.value.status == 409


def test_a_study_without_an_id_gets_a_new_one(ada: Any) -> None:
    ids = {ada.submit(engine="simulated", trials=2).id for _ in range(2)}
    assert len(ids) == 2


def test_a_value_that_cannot_work_names_its_setting(ada: Any) -> None:
    with pytest.raises(SettingError) as error:
        ada.submit(engine="simulated", slo=["fast"])
    assert (error.value.field, error.value.value) == ("slo", "fast")
    assert error.value.remedy == "give for example 'p99_tpot_ms<50'"
    with pytest.raises(SettingError, match="an id has up to 100 lower-case letters"):
        ada.submit(id="No", engine="simulated")
    with pytest.raises(SettingError, match="there is no setting 'workers'"):
        ada.submit(workers=2)


def test_refusals_are_errors_of_the_user(served: Served, make_client: MakeClient) -> None:
    served.submit("bens", "ben")
    ada, eve = (make_client(served.url, served.tokens[name]) for name in ("ada", "eve"))
    stranger = make_client(served.url, "tnr_" + "0" * 64)
    attempts: list[tuple[Callable[[], Any], int]] = [
        (lambda: stranger.study("x"), 401),
        (lambda: eve.submit(engine="simulated"), 403),
        (lambda: ada.study("bens"), 404),
        (lambda: ada.tokens(), 403),
        (lambda: ada.study(".."), 404),
        (lambda: ada.study("a/b"), 404),
    ]
    for act, status in attempts:
        with pytest.raises(UserError) as error:
            act()
        assert isinstance(error.value, RefusedError)
        assert error.value.status == status
        assert "\n" not in str(error.value)
        assert "0000" not in str(error.value)


def test_pages_are_read_to_the_end(served: Served, root: Any) -> None:
    names = [f"page-{number}" for number in range(203)]
    if served.service.submission(names[0]) is None:
        for name in names:
            served.submit(name, "carl")
    assert [study.id for study in root.studies(owner="carl")] == names[::-1]
    assert [study.id for study in root.studies(text="PAGE-202")] == ["page-202"]
    assert [*root.studies(states=["RUNNING"], owner="carl")] == []


@pytest.mark.parametrize("verb", ["cancel", "stop"])
def test_a_waiting_study_is_ended_resumed_and_deleted(served: Served, ada: Any, verb: str) -> None:
    ada.submit(id="ended", engine="simulated", trials=4)
    assert getattr(ada, verb)("ended").state is SubmissionState.CANCELLED
    with pytest.raises(RefusedError, match="it has ended"):
        ada.stop("ended")
    assert ada.resume("ended").state is SubmissionState.QUEUED
    ada.cancel("ended")
    assert ada.wait("ended").state is SubmissionState.CANCELLED
    ada.delete("ended")
    with pytest.raises(RefusedError, match="there is no study 'ended'"):
        ada.delete("ended")


def test_waiting_ends_with_the_time(ada: Any) -> None:
    ada.submit(id="waits", engine="simulated", trials=4)
    with pytest.raises(TimeoutError, match="'waits' is QUEUED after 0 s"):
        ada.wait("waits", timeout_s=0)


def test_results_of_a_study_that_has_none(served: Served, ada: Any, folder: Path) -> None:
    ada.submit(id="empty", engine="simulated", trials=4)
    assert ada.trials("empty") == []
    assert ada.conclusion("empty") is None
    attempts: list[Callable[[], Any]] = [
        lambda: ada.report("empty", folder / "r.html"),
        lambda: ada.export("empty", folder / "s.sh"),
        lambda: ada.log("empty"),
        lambda: ada.records("empty"),
        lambda: ada.chart("empty", "progress"),
        lambda: ada.conclusion("unknown"),
    ]
    for act in attempts:
        with pytest.raises(RefusedError) as error:
            act()
        assert error.value.status == 404
    assert [*folder.iterdir()] == []


def test_trials_and_records(served: Served, ada: Any) -> None:
    if served.store.study("stored") is None:
        served.submit("stored")
        served.store.create_study(store_samples.study("stored"))
        for number in range(2):
            served.store.add_trial(store_samples.pending(number, study="stored"))
        served.store.begin_attempt("stored", 0)
        served.store.finish_trial("stored", 0, 0, store_samples.success(), store_samples.verdict())
    first, second = ada.trials("stored")
    assert (first.number, first.round, first.state, first.score, first.provenance) == (0, 0, "ok", 1.25, "measured")
    assert first.metrics["p99_tpot_ms"] == 40.5
    assert (second.state, second.started_at, second.failure) == ("pending", None, None)
    assert [trial.number for trial in ada.trials("stored", after=0)] == [1]
    assert [[*line] for line in ada.records("stored")] == [["study"], ["trial"], ["trial"]]


def test_a_log_is_read_in_parts(served: Served, ada: Any) -> None:
    if served.service.submission("logged") is None:
        served.submit("logged")
        path = served.folder / "submissions" / "logged"
        path.mkdir(parents=True)
        (path / "driver.log").write_bytes("ä line\n".encode())
    part = ada.log("logged")
    assert (part.content.decode(), part.size, part.end) == ("ä line\n", 8, 8)
    part = ada.log("logged", 3)
    assert (part.content, part.end) == (b"line\n", 8)
    assert ada.log("logged", 99).content == b""


def test_the_queue_and_tokens(root: Any, make_client: MakeClient, served: Served) -> None:
    assert [device["name"] for device in root.queue()["devices"]] == ["cpu:0", "simulated:0", "simulated:1"]
    name = f"zoe{len(root.tokens())}"
    made = root.add_token(name, days=2)
    assert (made.owner, made.role) == (name, "user")
    assert made.expires_at is not None
    assert made.token is not None
    assert made.token not in repr(made)
    zoe = make_client(served.url, made.token)
    assert [*zoe.studies(owner=name)] == []
    assert root.revoke_token(name).revoked_at is not None
    with pytest.raises(RefusedError, match="valid token"):
        zoe.queue()
    assert [each.token for each in root.tokens()] == [None] * len(root.tokens())
    with pytest.raises(SettingError, match="a name has up to 63"):
        root.add_token("a/b")
