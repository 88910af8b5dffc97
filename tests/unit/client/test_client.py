"""The clients of the service: addresses, settings, and calls."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.service.records import SubmissionState
from tests import store_samples
from tests.served import Served
from tests.unit.client.conftest import MakeClient
from tuner.client.address import find_address
from tuner.client.client import AsyncClient, Client
from tuner.client.failures import RefusedError
from tuner.client.files import with_contents
from tuner.errors import SettingError, UserError
from tuner.settings.study import LARGEST_CONTENT


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


TOKEN = "tnr_" + "a1" * 32
LOCAL = "http://127.0.0.1:8600"


def test_arguments_come_before_the_environment() -> None:
    variables = {"TUNER_SERVER": "https://b.example", "TUNER_TOKEN": "other"}
    found = find_address(f"{LOCAL}/", TOKEN, environment=variables)
    assert (found.url, found.token) == (LOCAL, TOKEN)
    found = find_address(None, None, environment=variables)
    assert (found.url, found.token) == ("https://b.example", "other")


@pytest.mark.parametrize("url", [LOCAL, "http://localhost:1", "http://[::1]:8600", "https://b.example/tuner"])
def test_a_token_goes_to_this_machine_or_over_tls(url: str) -> None:
    assert find_address(url, TOKEN, environment={}).url == url


@pytest.mark.parametrize("url", ["http://b.example", "http://10.0.0.1:8600", "http://127.0.0.1.b.example"])
def test_a_token_is_not_sent_in_clear_to_another_machine(url: str) -> None:
    with pytest.raises(SettingError, match="without TLS") as error:
        find_address(url, TOKEN, environment={})
    assert error.value.field == "server"
    assert find_address(url, TOKEN, insecure=True, environment={}).url == url


@pytest.mark.parametrize("url", ["nope", "ftp://b.example", "http://", "http://h:x", "https://h/?a=1", "https://h/\n"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(SettingError) as error:
        find_address(url, TOKEN, environment={})
    assert error.value.field == "server"


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(SettingError) as error:
        find_address("https://ada:geheim@h", TOKEN, environment={})
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize("token", ["", "  ", "a\nb", "a b", "ä", "x" * 513])
def test_a_token_that_cannot_be_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(SettingError) as error:
        find_address(LOCAL, token, environment={})
    assert error.value.field == "token"
    assert token.strip() == "" or token not in str(error.value)


def test_no_text_shows_the_token() -> None:
    assert TOKEN not in repr(find_address(LOCAL, TOKEN, environment={}))
    with Client(LOCAL, TOKEN) as client:
        assert repr(client) == "Client('http://127.0.0.1:8600')"


def test_without_a_server_the_next_step_is_said() -> None:
    with pytest.raises(SettingError, match="set TUNER_SERVER"):
        find_address(None, TOKEN, environment={})


def test_absent_values_are_left_out_and_tuples_are_lists() -> None:
    assert with_contents({"model": None, "slo": ("a<1",), "trials": 4}) == {"slo": ["a<1"], "trials": 4}


def test_files_are_sent_with_the_files_that_they_refer_to(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text("classes: {a: {prompts: {file: p.txt}, lengths: {file: p.txt}}}\n")
    (tmp_path / "p.txt").write_text("hello\n")
    (tmp_path / "own.yaml").write_text("include: [part.yaml]\n")
    (tmp_path / "part.yaml").write_text("include: last.yaml\n")
    (tmp_path / "last.yaml").write_text("description: d")
    (tmp_path / "q.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}')
    given = {"workload": tmp_path / "chat.yaml", "space": tmp_path / "own.yaml", "quality_task": tmp_path / "q.jsonl"}
    assert with_contents(given) == {
        "workload": ["classes: {a: {prompts: {file: p.txt}, lengths: {file: p.txt}}}\n"],
        "space": "include: [part.yaml]\n",
        "quality_task": '{"prompt": "1+1=", "answer": "2"}\n',
        "files": {"p.txt": "hello\n", "part.yaml": "include: last.yaml\n", "last.yaml": "description: d"},
    }


def test_names_and_contents_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"space": "cpu", "quality_task": "lm-eval:gsm8k"}
    assert with_contents(given) == given
    assert with_contents({"space": "description: d\n"}) == {"space": "description: d\n"}


@pytest.mark.parametrize(
    ("content", "rule"),
    [(None, "No such file"), (b"\xff", "not UTF-8"), (b"x" * (LARGEST_CONTENT + 1), "larger than")],
)
def test_a_file_that_cannot_be_sent_is_named(tmp_path: Path, content: bytes | None, rule: str) -> None:
    path = tmp_path / "w.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=rule) as error:
        with_contents({"workload": [path]})
    assert (error.value.field, error.value.value) == ("workload", str(path))


def test_a_reference_into_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("a: {file: ../p.txt}\n")
    with pytest.raises(SettingError, match="files without folders"):
        with_contents({"workload": [str(tmp_path / "w.yaml")]})


@pytest.mark.parametrize("settings", [{"env": {"HF_TOKEN": "abc"}}, {"env": {"X": "abc"}, "secret": ["X"]}])
def test_the_value_of_a_secret_is_not_sent(settings: dict[str, object]) -> None:
    with pytest.raises(SettingError) as error:
        with_contents(settings)
    assert (error.value.field, "abc" in str(error.value)) == ("env", False)
    assert with_contents({"env": {"HF_TOKEN": "${HF_TOKEN}", "A": "b"}}) == {
        "env": {"HF_TOKEN": "${HF_TOKEN}", "A": "b"}
    }
