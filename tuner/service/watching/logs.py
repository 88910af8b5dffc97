"""Logs of the service and its drivers: lines for people, or one JSON object a line.

Every line of a log is one line whatever its message contains: control characters of a text are written as escapes.
"""

from __future__ import annotations

import json
import logging
import threading
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import IO, Any

from records.trials import FailureKind

VARIABLE = "TUNER_LOG_FORMAT"
"""The environment variable with the format: drivers have that of the service that started them."""

_LOG = logging.getLogger("tuner.service")
_FIELDS = "tuner_fields"
CULPRITS = {kind.value: kind.culprit.value for kind in FailureKind}
"""The culprit of each type of failure."""


class LogFormat(StrEnum):
    """How a log is written."""

    TEXT = "text"
    JSON = "json"


def say(level: int, message: str, error: BaseException | None = None, **fields: Any) -> None:
    """Write a line for people; a JSON line also has `fields` such as `study` and `trial`, but for those that are None.

    Of an `error`, the type and the traceback are logged.
    """
    _LOG.log(level, "%s", message, exc_info=error, extra={_FIELDS: fields})


def set_up(form: LogFormat, stream: IO[str], times: bool = False, **fields: Any) -> None:
    """Send every log of this process to a stream, libraries' warnings included.

    With `times`, a text begins with the time, as a JSON line always does. Every JSON line has `fields`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(fields) if form is LogFormat.JSON else TextLines(times))
    logging.basicConfig(handlers=[handler], force=True)
    _LOG.setLevel(logging.INFO)
    if form is LogFormat.JSON:
        logging.captureWarnings(True)
        threading.excepthook = _log_thread


def _log_thread(about: threading.ExceptHookArgs) -> None:
    name = None if about.thread is None else about.thread.name
    say(logging.ERROR, f"the thread {name} ended", about.exc_value)


class TextLines(logging.Formatter):
    """Writes the message, after its time if that is asked for, and the lines of a traceback."""

    def __init__(self, times: bool) -> None:
        super().__init__()
        self._times = times

    def format(self, record: logging.LogRecord) -> str:
        time = f"{_time(record):%Y-%m-%d %H:%M:%S} " if self._times else ""
        trace = _trace(self, record)
        return time + escaped(record.getMessage()) + (f"\n{trace}" if trace else "")


class JsonLines(logging.Formatter):
    """Writes a JSON object with `time`, `level`, `logger`, `message` and the record's fields."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        more = {**self._fields, **getattr(record, _FIELDS, {})}
        if record.exc_info and record.exc_info[0] is not None:
            more |= {"error": record.exc_info[0].__name__, "trace": _trace(self, record)}
        line |= {name: value for name, value in more.items() if value is not None and name not in line}
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    info: tuple[type[BaseException], BaseException, TracebackType | None] | Any = record.exc_info
    return formatter.formatException(info) if info and info[0] is not None else ""


def escaped(text: str) -> str:
    """Return a text on one line: control characters and separators of lines become escapes such as `\\n`."""
    return "".join(
        repr(char)[1:-1] if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs") else char for char in text
    )


def say_event(study: str, kind: str, data: Mapping[str, Any]) -> None:
    """Log an event of a study, if a line about it helps: stages, trials, failures with type and culprit, notes."""
    if kind == "stage":
        say(logging.INFO, f"stage {data['stage']} begins", study=study, stage=data["stage"])
    elif kind == "note":
        say(logging.WARNING, data["text"], study=study)
    elif kind == "trial_started":
        about = {name: data[name] for name in ("round", "attempt", "worker")}
        say(logging.INFO, f"trial {_name(data)} starts", study=study, trial=data["number"], **about)
    elif kind == "trial_retried":
        _say_trial(study, data, data, "failed and runs again")
    elif kind == "trial":
        _say_trial(study, data, data.get("failure"), str(data["state"]))


def _say_trial(study: str, data: Mapping[str, Any], failure: Mapping[str, Any] | None, how: str) -> None:
    about = {"study": study, "trial": data["number"], "round": data["round"], "score": data.get("score")}
    if failure is None:
        say(logging.INFO, f"trial {_name(data)}: {how}", **about, state=how)
        return
    kind, culprit = failure["kind"], CULPRITS.get(failure["kind"])
    text = f"trial {_name(data)}: {how}: {kind} ({culprit}): {failure['message']}"
    say(logging.WARNING, text, **about, state=data.get("state"), failure=kind, culprit=culprit)


def _name(data: Mapping[str, Any]) -> str:
    return f"#{data['number']}" + (f" r{data['round']}" if data["round"] else "")
