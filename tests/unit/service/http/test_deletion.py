"""What is gone after a study was deleted, and which ids are free."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

import optuna
import pytest

from storage import normalise_url, open_store
from storage.service.records import Request
from storage.service.store import open_service_store
from tests import store_samples
from tests.service_samples import START, submission
from tests.unit.service.http.conftest import Api
from tests.unit.storage.test_locks import another_process
from tuner import optimize
from tuner.service import deletion

ID = "s"
"""The study whose lock `another_process` holds."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return normalise_url(str(tmp_path / "t.db"))


def run_study(url: str, folder: Path, seed: int = 0) -> int:
    """Run a simulated study of this id as its driver does, and return the number of its trials in Optuna."""
    output = folder / "submissions" / ID / "best_serve.sh"
    output.parent.mkdir(parents=True, exist_ok=True)
    optimize(study=ID, engine="simulated", trials=4, reduce=False, seed=seed, storage=url, output=output)
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
    monkeypatch.setattr(deletion, "study_lock", lambda *_: nullcontext())
    monkeypatch.setattr("tuner.study.optuna_storage.delete_optuna_study", lambda *_: None)
    own = tmp_path / "tuner_study" / "artifacts" / ID
    own.mkdir(parents=True)
    with closing(open_service_store(str(tmp_path / "t.db"))) as service:
        service.submit(submission(ID))
        service.request(ID, Request.CANCEL, START)
        deletion.delete_study(ID, service, "postgresql+psycopg://host/db", tmp_path / "submissions" / ID)
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
