"""Outcomes that are not in the database yet, as files in the study's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from storage.records import Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts, TrialOutcome
from tuner.files import write_atomically

_PREFIX = "unstored-"
_MODE = 0o600  # an outcome contains the server's environment


@dataclass(frozen=True)
class KeptOutcome:
    """The outcome of a trial, or of a finalist's measurement in a round."""

    number: int
    round: int
    outcome: TrialOutcome


class KeptOutcomes:
    """Keeps each outcome in a file from its arrival until the database has it."""

    def __init__(self, folder: Path, study: str) -> None:
        """Choose the folder; nothing is created.

        Args:
            folder: of the study's artifacts.
            study: identifies the study; the files of another one of the same name are ignored.
        """
        self._folder = folder
        self._study = study

    def keep(self, number: int, round_: int, outcome: TrialOutcome) -> None:
        """Write an outcome to its file; a full disk is no reason not to store it in the database."""
        content = {"study": self._study, "number": number, "round": round_, "outcome": asdict(outcome)}
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(content, default=datetime.isoformat)
            write_atomically(self._path(number, round_), text, mode=_MODE)

    def remove(self, number: int, round_: int) -> None:
        """Remove the file of an outcome that the database has."""
        with suppress(OSError):
            self._path(number, round_).unlink(missing_ok=True)

    def read(self) -> Iterator[KeptOutcome]:
        """Yield the kept outcomes of this study, and remove files that cannot be read or belong to another one."""
        for path in sorted(self._folder.glob(f"{_PREFIX}*.json")):
            kept = None
            with suppress(OSError, ValueError, KeyError, TypeError):
                content = json.loads(path.read_text(encoding="utf-8"))
                if content["study"] == self._study:
                    kept = KeptOutcome(content["number"], content["round"], _outcome(content["outcome"]))
            if kept is not None:
                yield kept
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _path(self, number: int, round_: int) -> Path:
        return self._folder / f"{_PREFIX}{number}-{round_}.json"


def _outcome(content: dict[str, Any]) -> TrialOutcome:
    """Return an outcome from the JSON of its fields."""
    failure, server = content["failure"], content["server"]
    parts = {
        "started_at": datetime.fromisoformat(content["started_at"]),
        "ended_at": datetime.fromisoformat(content["ended_at"]),
        "provenance": Provenance(content["provenance"]),
        "argv": tuple(content["argv"]),
        "repeats": tuple(Repeat(**repeat) for repeat in content["repeats"]),
        "server": None if server is None else ServerFacts(**server),
        "failure": None if failure is None else _failure(failure),
    }
    return TrialOutcome(**{**content, **parts})


def _failure(content: dict[str, Any]) -> Failure:
    return Failure(**{**content, "kind": FailureKind(content["kind"]), "phase": Phase(content["phase"])})
