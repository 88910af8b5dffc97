"""What the service tells: messages to webhooks, and meters."""

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from storage.service.records import Event, Figures, Request, SubmissionState, Waiting
from storage.service.store import ServiceStore, open_service_store
from tests.empty_database import write_empty_database
from tests.fakes.http_server import Answer, Asked, http_server
from tests.service_samples import at, submission
from tuner.errors import SettingError
from tuner.http import HttpError
from tuner.service.scheduler import scheduler
from tuner.service.scheduler.scheduler import QueueState
from tuner.service.watching.messages import WAITS_S, Messenger, signature_of
from tuner.service.watching.meters import Meters
from tuner.service.watching.webhooks import Webhook, Webhooks, find_webhooks

TEAM = Webhook("team", "http://hooks.example/x")


class Receiver:
    """Answers each attempt with the next outcome, a status or a reason, and keeps what it got."""

    def __init__(self, *outcomes: int | str) -> None:
        self.outcomes = list(outcomes)
        self.got: list[tuple[str, dict[str, Any], Mapping[str, str]]] = []

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str], deadline_s: float) -> int:
        self.got.append((url, json.loads(body), headers))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, str):
            raise HttpError(outcome)
        return outcome


class Clock:
    def __init__(self) -> None:
        self.second = 10.0

    def __call__(self) -> Any:
        return at(self.second)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ServiceStore]:
    """A store in which the study `s` was cancelled at second 10."""
    write_empty_database(tmp_path / "t.db")
    store = open_service_store(str(tmp_path / "t.db"))
    store.submit(submission("s", webhook="team"))
    store.request("s", Request.CANCEL, at(10))
    yield store
    store.close()


def messenger(store: ServiceStore, send: Any, webhook: Webhook = TEAM, notes: list[str] | None = None) -> Any:
    clock = Clock()
    kept: list[str] = [] if notes is None else notes
    hooks = Webhooks({webhook.name: webhook})
    return clock, Messenger(store, hooks, lambda text, _: kept.append(text), QueueState(), send, clock)


def test_the_signature_of_the_published_example() -> None:
    # Of the tests of the reference libraries of github.com/standard-webhooks/standard-webhooks.
    secret, key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    signed = signature_of(secret, key, 1_614_265_330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_message_says_what_ended_and_how(store: ServiceStore) -> None:
    receiver = Receiver(204)
    _, sender = messenger(store, receiver)
    sender.step()
    sender.step()  # nothing is left
    (url, body, headers), *more = receiver.got
    assert more == []
    assert url == TEAM.url
    assert body["type"] == "study.cancelled"
    assert body["text"] == "tuner: the study s of ada is CANCELLED"
    assert body["timestamp"] == body["data"]["ended_at"] == at(10).isoformat()
    assert body["data"]["reason"] == "ended on request before it started"
    assert headers["webhook-id"] == "end_1_2"
    assert headers["webhook-timestamp"] == str(int(at(10).timestamp()))
    assert "webhook-signature" not in headers


def test_a_refused_message_is_sent_again_under_the_same_id(store: ServiceStore) -> None:
    receiver, notes = Receiver(500, "refused", 200), list[str]()
    clock, sender = messenger(store, receiver, notes=notes)
    for second in (10, 14.9, 15, 74.9, 75, 1000):
        clock.second = second
        sender.step()
    assert [headers["webhook-id"] for _, _, headers in receiver.got] == ["end_1_2"] * 3
    assert [int(headers["webhook-timestamp"]) for _, _, headers in receiver.got] == [
        int(at(second).timestamp()) for second in (10, 15, 75)
    ]
    assert notes == [
        "webhook team, attempt 1: the answer is HTTP 500; the next attempt is in 5 s",
        "webhook team, attempt 2: refused; the next attempt is in 60 s",
    ]


def test_after_seven_attempts_a_message_is_given_up(store: ServiceStore) -> None:
    receiver, notes = Receiver(*[302] * 7), list[str]()
    clock, sender = messenger(store, receiver, notes=notes)
    for wait in (0, *WAITS_S, 10 * WAITS_S[-1]):
        clock.second += wait
        sender.step()
    assert len(receiver.got) == 7
    assert notes[-1] == "webhook team, attempt 7: the answer is HTTP 302; the message is given up"
    (entry,) = store.audit_log()
    assert (entry.action, entry.resource, entry.result) == ("webhook", "s", "given up")


def test_a_webhook_that_the_server_no_longer_has(store: ServiceStore) -> None:
    notes: list[str] = []
    receiver = Receiver()
    _, sender = messenger(store, receiver, Webhook("other", "http://x"), notes)
    sender.step()
    assert receiver.got == []
    assert notes == ["webhook team, attempt 1: this server has no such webhook; the next attempt is in 5 s"]


@pytest.fixture
def listener() -> Iterator[tuple[str, list[tuple[str, bytes, str | None]]]]:
    """An HTTP server that redirects `/away`, accepts all else, and keeps what it got."""
    got: list[tuple[str, bytes, str | None]] = []

    def answer(asked: Asked) -> Answer:
        got.append((asked.path, asked.body, asked.headers["webhook-signature"]))
        return Answer(status=307 if asked.path == "/away" else 200, headers={"location": "/elsewhere"})

    with http_server(answer) as address:
        yield address, got


def test_a_real_receiver_can_check_the_signature(store: ServiceStore, listener: Any) -> None:
    from tuner.http import post

    url, got = listener
    _, sender = messenger(store, post, Webhook("team", f"{url}/hook", "key"))
    sender.step()
    ((path, body, signature),) = got
    assert path == "/hook"
    assert signature == signature_of("key", "end_1_2", int(at(10).timestamp()), body)
    assert store.due_messages(at(1000)) == []


def test_a_redirect_is_not_followed(store: ServiceStore, listener: Any) -> None:
    from tuner.http import post

    url, got = listener
    notes: list[str] = []
    _, sender = messenger(store, post, Webhook("team", f"{url}/away"), notes)
    sender.step()
    assert [path for path, _, _ in got] == ["/away"]
    assert notes == ["webhook team, attempt 1: the answer is HTTP 307; the next attempt is in 5 s"]


def test_no_line_of_the_log_shows_the_address(store: ServiceStore) -> None:
    from tuner.http import post

    notes: list[str] = []
    _, sender = messenger(store, post, Webhook("team", "http://127.0.0.1:9/T0/very-secret"), notes)
    sender.step()
    assert len(notes) == 1
    assert "very-secret" not in notes[0]


def test_it_sends_only_while_this_process_schedules(store: ServiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "STEP_S", 0.02)
    looks: list[bool] = []
    sent_at_look: list[int] = []
    sent = threading.Event()

    class Turns:
        @property
        def leads(self) -> bool:
            looks.append(len(looks) == 2)
            return looks[-1]

    def send(*_: object) -> int:
        sent_at_look.append(len(looks))
        sent.set()
        return 200

    stop, turns = threading.Event(), cast(QueueState, Turns())
    sender = Messenger(store, Webhooks({"team": TEAM}), lambda *_: None, turns, send, lambda: at(1000))
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    try:
        assert sent.wait(60)
    finally:
        stop.set()
        thread.join()
    assert sent_at_look == [3]
    assert store.due_messages(at(1000)) == []


NOW = datetime(2026, 11, 26, 9, tzinfo=UTC)
S = SubmissionState
EMPTY = Figures(dict.fromkeys(SubmissionState, 0), {}, ())


def values(meters: Meters, figures: Figures = EMPTY, devices: Any = None) -> dict[tuple[str, ...], float]:
    """Return the value of each sample of a scrape by its name and the values of its labels, sorted by label."""
    text = meters.text(figures, devices or {}, True, NOW).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *dict(sorted(sample.labels.items())).values()): sample.value for sample in samples}


def event(kind: str, /, **data: Any) -> Event:
    return Event("s", 1, NOW, kind, data)


def test_trials_are_counted_by_state_failure_and_culprit() -> None:
    meters = Meters()
    failure = {"kind": "engine_crash", "message": "m"}
    meters.happened(
        [
            event("trial", state="ok", failure=None, seconds={"ready": 20.5, "benchmark": 30.0}),
            event("trial", state="failed", failure=failure, seconds={"ready": 2.0}),
            event("trial", state="failed", failure={"kind": "worker_lost", "message": "m"}, seconds={}),
            event("trial_retried", kind="port_taken", message="m"),
            event("stage", stage="search"),
        ]
    )
    found = values(meters)
    assert found["tuner_trials_total", "", "", "ok"] == 1
    assert found["tuner_trials_total", "configuration", "engine_crash", "failed"] == 1
    assert found["tuner_trials_total", "infrastructure", "worker_lost", "failed"] == 1
    assert found["tuner_trials_total", "tuner", "tuner_error", "failed"] == 0
    assert found["tuner_trial_retries_total", "port_taken"] == 1
    assert found["tuner_trial_seconds_total", "ready"] == 22.5
    assert found["tuner_trial_seconds_total", "benchmark"] == 30
    assert found["tuner_trial_seconds_total", "own"] == 0


def test_a_driver_of_another_version_does_not_stop_the_counting() -> None:
    meters = Meters()
    odd = {"kind": "of_next_year", "message": "m"}
    meters.happened([event("trial", state="failed", failure=odd), event("trial", state="ok", failure=None)])
    found = values(meters)
    assert found["tuner_trials_total", "", "of_next_year", "failed"] == 1
    assert found["tuner_trials_total", "", "", "ok"] == 1


def test_the_queue_in_numbers() -> None:
    states = {**EMPTY.states, S.QUEUED: 3, S.RUNNING: 1}
    waiting = {"h200": Waiting(3, NOW - timedelta(seconds=90))}
    figures = Figures(states, waiting, ("h200:0", "simulated:1"))
    devices = {"h200": ("h200:0", "h200:1"), "simulated": ("simulated:0", "simulated:1")}
    found = values(Meters(), figures, devices)
    assert (found["tuner_studies", "QUEUED"], found["tuner_studies", "DONE"]) == (3, 0)
    assert (found["tuner_queue_studies", "h200"], found["tuner_queue_oldest_seconds", "h200"]) == (3, 90)
    assert (found["tuner_queue_studies", "simulated"], found["tuner_queue_oldest_seconds", "simulated"]) == (0, 0)
    assert (found["tuner_devices", "h200"], found["tuner_devices_busy", "h200"]) == (2, 1)
    assert found["tuner_scheduler_leads",] == 1


@pytest.mark.parametrize(
    ("method", "route", "status", "labels"),
    [
        ("GET", "/v1/studies/{id}", 200, ("GET", "/v1/studies/{id}", "2xx")),
        ("BREW", None, 404, ("other", "other", "4xx")),
    ],
)
def test_latencies_have_few_labels(method: str, route: str | None, status: int, labels: tuple[str, ...]) -> None:
    """Whoever asks for made-up addresses or methods makes no new series."""
    meters = Meters()
    for seconds in (0.004, 0.02, 3.0):
        meters.answered(method, route, status, seconds)
    found = values(meters)
    assert found["tuner_request_seconds_count", *labels] == 3
    assert found["tuner_request_seconds_sum", *labels] == pytest.approx(3.024)
    assert found["tuner_request_seconds_bucket", "0.005", *labels] == 1
    assert found["tuner_request_seconds_bucket", "0.025", *labels] == 2
    assert found["tuner_request_seconds_bucket", "2.5", *labels] == 2


URL = "https://hooks.example/T0/secret"


def test_addresses_and_secrets_are_those_of_the_environment() -> None:
    variables = {
        "TUNER_WEBHOOK_TEAM": URL,
        "TUNER_WEBHOOK_ON_CALL": "http://10.0.0.1/x",
        "TUNER_WEBHOOK_TEAM_SECRET": "k",
    }
    found = find_webhooks(["team"], "on-call", variables)
    assert found.by_name == {
        "team": Webhook("team", URL, "k"),
        "on-call": Webhook("on-call", "http://10.0.0.1/x"),
    }
    assert found.default == "on-call"


def test_no_text_shows_address_or_secret() -> None:
    assert repr(Webhook("team", URL, "key")) == "Webhook(name='team')"


@pytest.mark.parametrize(
    "url", ["", "hooks.example", "ftp://hooks.example", "https://", "https://[", "http://a:x/", "http://a\n"]
)
def test_a_variable_without_an_address_is_refused(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        find_webhooks(["team"], None, {"TUNER_WEBHOOK_TEAM": url})
    # The value is not repeated, because an address may contain a secret.
    remedy = "set TUNER_WEBHOOK_TEAM to one such as https://hooks.example/tuner"
    assert str(caught.value) == f"webhook='team': TUNER_WEBHOOK_TEAM has no address; {remedy}"


@pytest.mark.parametrize("name", ["", "Team", "1st", "a_b", "a" * 32, "team-secret", "a/b"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(SettingError):
        find_webhooks([name], None, {"TUNER_WEBHOOK_" + name.upper().replace("-", "_"): URL})


def test_a_submission_has_the_webhook_that_it_names_or_the_default() -> None:
    variables = {"TUNER_WEBHOOK_A": URL, "TUNER_WEBHOOK_B": URL}
    assert find_webhooks(["a"], None, variables).chosen(None) is None
    assert find_webhooks(["a"], "b", variables).chosen(None) == "b"
    assert find_webhooks(["a"], "b", variables).chosen("a") == "a"
    with pytest.raises(SettingError, match="webhooks a, b"):
        find_webhooks(["a"], "b", variables).chosen("http://169.254.169.254/latest")
    with pytest.raises(SettingError, match="no webhook"):
        find_webhooks([], None, variables).chosen("a")
