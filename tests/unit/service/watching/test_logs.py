"""Logs: one line for each record whatever it contains, with study, trial, type of failure and culprit."""

import io
import json
import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tuner.service.watching.logs import LogFormat, escaped, say, say_event, set_up

FORGED = 'x\r\n{"level": "error", "study": "of another"}'
TRIAL = {"number": 3, "round": 0, "state": "ok", "score": 1.5, "failure": None}


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    yield
    root.handlers[:] = handlers
    logging.captureWarnings(False)


def lines_of(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def json_log(**fields: Any) -> io.StringIO:
    stream = io.StringIO()
    set_up(LogFormat.JSON, stream, **fields)
    return stream


def test_a_json_line_has_time_level_message_and_fields() -> None:
    stream = json_log(study="s")
    say(logging.WARNING, "gone", trial=None, culprit="tuner")
    (line,) = lines_of(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "warning", "logger": "tuner.service", "message": "gone", "study": "s", "culprit": "tuner"}


def test_a_failed_trial_has_its_type_and_its_culprit() -> None:
    stream = json_log()
    failure = {"kind": "worker_lost", "message": "node down"}
    say_event("s", "trial", {**TRIAL, "state": "failed", "score": None, "failure": failure})
    say_event("s", "trial", {**TRIAL, "round": 2})
    say_event("s", "trial_retried", {"number": 3, "round": 0, "attempt": 1, "kind": "gpu_busy", "message": "full"})
    say_event("s", "workers", {"workers": []})
    failed, ok, retried = lines_of(stream)
    assert failed["message"] == "trial #3: failed: worker_lost (infrastructure): node down"
    assert {name: failed[name] for name in ("level", "study", "trial", "failure", "culprit")} == {
        **{"level": "warning", "study": "s", "trial": 3},
        **{"failure": "worker_lost", "culprit": "infrastructure"},
    }
    assert (ok["message"], ok["level"], ok["round"], ok["score"]) == ("trial #3 r2: ok", "info", 2, 1.5)
    assert "failure" not in ok
    assert (retried["failure"], retried["culprit"]) == ("gpu_busy", "infrastructure")


def test_an_exception_is_one_line_with_its_type_and_trace() -> None:
    stream = json_log()
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        say(logging.ERROR, "internal error", error)
    (line,) = lines_of(stream)
    assert line["error"] == "ValueError"
    assert line["trace"].startswith("Traceback")
    assert "test_logs.py" in line["trace"]


@pytest.mark.parametrize("logger", ["tuner.service", "uvicorn.error", "sqlalchemy.pool"])
def test_nothing_in_a_message_makes_a_second_line(logger: str) -> None:
    """A record of any library ends in the same handler."""
    stream = json_log()
    logging.getLogger(logger).warning("path %s", FORGED)
    (line,) = lines_of(stream)
    assert line["message"] == f"path {FORGED}"
    assert line["level"] == "warning"
    assert "study" not in line
    text = io.StringIO()
    set_up(LogFormat.TEXT, text)
    logging.getLogger(logger).warning("path %s", FORGED)
    assert text.getvalue() == 'path x\\r\\n{"level": "error", "study": "of another"}\n'


def test_a_field_cannot_replace_what_every_line_has() -> None:
    stream = json_log()
    logging.getLogger("tuner.service").info("true", extra={"tuner_fields": {"level": "error", "message": "false"}})
    (line,) = lines_of(stream)
    assert (line["level"], line["message"]) == ("info", "true")


def test_warnings_and_threads_that_end_are_json() -> None:
    stream = json_log()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    thread = threading.Thread(target=lambda: [][0], name="worker")
    thread.start()
    thread.join()
    warned, ended = lines_of(stream)
    assert "DeprecationWarning: old" in warned["message"]
    assert (ended["message"], ended["error"]) == ("the thread worker ended", "IndexError")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a\u202eb", "a\\u202eb"),
        ("ä 1\tb", "ä 1\\tb"),
        ("a\u2028", "a\\u2028"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
