"""MLflow's UI: its command, its view, the link to a study, and one sync at a time."""

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards.mlflow.link import link_to
from dashboards.mlflow.ui import (
    VIEW_TAG,
    base_url,
    columns_of,
    experiment_tags,
    one_at_a_time,
    runs_query,
    ui_command,
    ui_environment,
    view_of,
    with_password,
)
from records.trials import Provenance, StudyRecord
from storage.errors import StorageError
from storage.locks import sync_lock
from tests import store_samples as samples
from tests.fakes.http_server import Answer, Asked, http_server
from tests.postgres import postgres_server
from tuner.client.address import is_loopback


def answer(asked: Asked) -> Answer:
    """MLflow's answer about an experiment; it knows `a study/1` only."""
    [name] = parse_qs(urlsplit(asked.path).query)["experiment_name"]
    locked = name == "locked" and asked.headers["Authorization"] != "Basic YWRtaW46YSBwYXNzd29yZA=="
    known = name in ("a study/1", "viewed", "locked")
    tags = [{"key": VIEW_TAG, "value": "{}"}] if name == "viewed" else []
    content = {"experiment": {"experiment_id": "7", "tags": tags}} if known else {}
    return Answer(json.dumps(content), 401 if locked else 200 if known else 404)


@pytest.fixture
def base() -> Iterator[str]:
    with http_server(answer) as address:
        yield address


def test_the_runs_of_a_study_are_sorted_by_score(base: str) -> None:
    link = link_to(base, "a study/1")
    assert link is not None
    page, _, query = link.partition("?")
    assert page == f"{base}/#/experiments/7/runs"
    found = parse_qs(query)
    assert (found["orderByKey"], found["orderByAsc"]) == (["metrics.`score`"], ["false"])


def test_a_study_with_a_view_opens_in_it(base: str) -> None:
    page = f"{base}/#/experiments/7/runs"
    assert link_to(base, "viewed") == f"{page}?viewStateShareKey=tuner&workflowType=machine_learning"


def test_a_study_that_mlflow_does_not_know_has_the_page_of_all(base: str) -> None:
    assert link_to(base, "other") == f"{base}/#/experiments"


def test_a_server_with_a_password_gets_it(base: str) -> None:
    assert "/experiments/7/runs" in str(link_to(base, "locked", "a password"))
    assert link_to(base, "locked", "another") == f"{base}/#/experiments"


def test_a_server_that_does_not_answer_yet_has_no_link() -> None:
    with http_server(answer) as ended:
        pass
    assert link_to(ended, "a study/1") is None


RELATIVE = "sqlite:///tuner_study/tuner.db"
ME = f"process {os.getpid()} on host {socket.gethostname()}"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders, each with the folder of the default database."""
    for name in ("one", "other"):
        (tmp_path / name / "tuner_study").mkdir(parents=True)
    return tmp_path / "one", tmp_path / "other"


def test_two_folders_with_the_same_relative_path_do_not_wait(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = folders
    monkeypatch.chdir(one)
    with one_at_a_time(RELATIVE):
        monkeypatch.chdir(other)
        with one_at_a_time(RELATIVE, wait_s=0):
            pass
        with pytest.raises(StorageError), one_at_a_time(f"sqlite:///{one / 'tuner_study/tuner.db'}", wait_s=0):
            pass


def test_the_wait_names_the_other_process_and_has_an_end(folders: tuple[Path, Path]) -> None:
    url = f"sqlite:///{folders[0] / 'tuner.db'}"
    lines: list[str] = []
    message = f"^{ME} has been logging this database to MLflow for 0 s; end it, or run `tuner study sync` later$"
    with one_at_a_time(url), pytest.raises(StorageError, match=message), one_at_a_time(url, lines.append, wait_s=0.3):
        pass
    assert lines == [f"waiting at most 0 s for {ME}, which logs this database to MLflow"]
    with one_at_a_time(url, wait_s=0):
        pass


@pytest.mark.program("postgresql")
def test_a_sync_of_postgresql_takes_a_lock_of_the_database() -> None:
    with postgres_server() as server:
        url, other = server.new_database(), server.new_database()
        with one_at_a_time(url), one_at_a_time(other, wait_s=0):
            assert str(sync_lock(url).holder()) == ME
            with pytest.raises(StorageError, match=ME), one_at_a_time(url, wait_s=0):
                pass
        assert sync_lock(url).holder() is None


def test_nothing_is_in_the_shared_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A predictable name there can be taken by another user: a symbolic link would truncate its target."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with one_at_a_time(f"sqlite:///{tmp_path / 'tuner.db'}"):
        assert list(shared.iterdir()) == []
        assert (tmp_path / "tuner.db.sync.lock").is_file()
    assert not (tmp_path / "tuner.db.sync.lock").exists()


def test_the_ui_listens_on_loopback_only(tmp_path: Path) -> None:
    command = ui_command(tmp_path, 5001)
    assert not any("sqlite" in word for word in command)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == "5001"
    assert command[command.index("--default-artifact-root") + 1] == tmp_path.as_uri()


def test_a_server_chooses_its_own_artifacts() -> None:
    assert "--default-artifact-root" not in ui_command(None, 5001)


def test_no_workers_of_mlflows_own_jobs_start_unless_the_user_asks_for_them() -> None:
    database = {"MLFLOW_BACKEND_STORE_URI": "sqlite:///a.db"}
    off, on = ({"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": value} for value in ("false", "true"))
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    assert ui_environment({"HOME": "/h"}, "sqlite:///a.db") == {"HOME": "/h"} | database | off | quiet
    assert ui_environment(on, "sqlite:///a.db") == database | on | quiet


@pytest.mark.parametrize(
    ("host", "loopback", "url"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:5000"),
        ("127.8.8.8", True, "http://127.8.8.8:5000"),
        ("localhost", True, "http://localhost:5000"),
        ("::1", True, "http://[::1]:5000"),
        ("0.0.0.0", False, "http://127.0.0.1:5000"),
        ("::", False, "http://127.0.0.1:5000"),
        ("10.0.0.7", False, "http://10.0.0.7:5000"),
        ("box.example.org", False, "http://box.example.org:5000"),
    ],
)
def test_the_browser_is_given_an_address_of_this_machine_where_there_is_one(
    host: str, loopback: bool, url: str
) -> None:
    assert is_loopback(host) is loopback
    assert base_url(host, 5000) == url


@pytest.mark.parametrize("asks", [True, False])
def test_a_server_that_others_reach_can_ask_for_a_password(asks: bool) -> None:
    assert ("basic-auth" in ui_command(None, 5000, "10.0.0.7", asks=asks)) is asks


def test_the_password_is_in_the_environment_only(tmp_path: Path) -> None:
    environment = with_password({"MLFLOW_AUTH_ADMIN_PASSWORD": "a secret password"}, tmp_path)
    file = Path(environment["MLFLOW_AUTH_CONFIG_PATH"])
    assert file == tmp_path / "mlflow_auth.ini"
    assert f"database_uri = sqlite:///{tmp_path / 'mlflow_auth.db'}\n" in file.read_text()
    assert "a secret password" not in file.read_text()
    assert len(environment["MLFLOW_FLASK_SERVER_SECRET_KEY"]) == 64


def test_own_settings_of_mlflows_authentication_stay(tmp_path: Path) -> None:
    given = {"MLFLOW_AUTH_CONFIG_PATH": "/etc/mlflow.ini", "MLFLOW_FLASK_SERVER_SECRET_KEY": "k"}
    assert with_password(given, tmp_path) == given
    assert list(tmp_path.iterdir()) == []


CLOSED: dict[str, Any] = {
    "objectives": ["p99_e2el_ms:40", "output_throughput:20"],
    "slos": ["p99_ttft_ms<2000", "success_rate>=1"],
}
CLASSES: dict[str, Any] = {"classes": {"chat": {"weight": 1.0}}, "slo": {"chat": {"p95_ttft_ms": 1000.0}}}


def study(provenance: Provenance = Provenance.MEASURED, price: bool = False, **premise: Any) -> StudyRecord:
    facts = {"price": {"per_gpu_hour": 0.5}} if price else {}
    return replace(samples.study("a [study]", provenance), premise=premise, facts=facts)


def test_a_measured_study_has_ten_columns_its_objectives_first() -> None:
    assert columns_of(study(**CLOSED)) == [
        "metrics.`score`",
        "tags.`state`",
        "metrics.`p99_e2el_ms`",
        "metrics.`output_throughput`",
        "metrics.`p99_ttft_ms`",
        "metrics.`p99_tpot_ms`",
        "metrics.`p99_itl_ms`",
        "metrics.`request_throughput`",
        "metrics.`flags_changed`",
        "tags.`failure`",
    ]


def test_a_simulated_study_with_a_price_has_its_cost_and_the_simulated_duration() -> None:
    columns = columns_of(study(Provenance.SIMULATED, price=True, **CLOSED))
    assert len(columns) == 10
    assert columns[-4:] == [
        "metrics.`cost_per_million_output_tokens`",
        "metrics.`flags_changed`",
        "tags.`failure`",
        "metrics.`simulated/total_s`",
    ]


def test_traffic_with_slos_has_its_goodput() -> None:
    assert "metrics.`goodput`" in columns_of(study(workload=CLASSES, objectives=["chat.goodput:1"]))
    assert "metrics.`goodput`" not in columns_of(study(**CLOSED))


def test_a_premise_of_an_older_version_has_the_common_columns() -> None:
    assert columns_of(samples.study())[:3] == ["metrics.`score`", "tags.`state`", "metrics.`output_throughput`"]


def test_the_view_sorts_by_score_and_leaves_out_the_rounds() -> None:
    state = json.loads(view_of(study(**CLOSED)))
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`score`", False)
    assert state["searchFilter"] == "tags.kind != 'confirm'"
    columns = state["selectedColumns"]
    assert state["columnOrder"] == ["attributes.`Run Name`", *columns, "runDateAndNestInfo", "duration"]
    assert set(state["columnWidths"]) == set(state["columnOrder"])


def test_the_tags_fit_into_mlflows_limit_and_link_to_the_parent_run() -> None:
    long = [f"{'c' * 200}.p95_ttft_ms:{number}" for number in range(10)]
    tags = experiment_tags(study(objectives=long), "7", "abc")
    assert max(map(len, tags.values())) <= 5000
    assert "[a \\[study\\]](#/experiments/7/runs/abc?workflowType=machine_learning)" in tags["mlflow.note.content"]


def test_a_link_names_no_order_beside_the_view_which_it_would_replace() -> None:
    mode = {"workflowType": ["machine_learning"]}
    assert parse_qs(runs_query({VIEW_TAG: "{}"})) == {"viewStateShareKey": ["tuner"], **mode}
    order = parse_qs(runs_query({}))
    assert order.items() >= {**mode, "orderByKey": ["metrics.`score`"], "orderByAsc": ["false"]}.items()
