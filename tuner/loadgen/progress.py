"""The progress of a run, which the generator writes once a second, and which whoever watches the run reads.

The first line of the file has the plan. Each further line has the time, the requests that have ended since the last
line, and those in flight. Times are in seconds since the run began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.loadgen.plan import PlannedRequest
from tuner.workloads.results import RequestRecord, RequestStatus

PERIOD_S = 1.0
"""Seconds between two lines."""

InFlight = tuple[int, float, float | None]
"""A request in flight: its number, when it was sent, and when its first token arrived."""


class ProgressWriter:
    """Writes the progress of a run."""

    def __init__(self, path: Path, requests: Iterable[PlannedRequest]) -> None:
        """Write the plan."""
        self._path = path
        self._write([(each.index, each.name, each.at_s, each.prompt_tokens, each.max_tokens) for each in requests], "w")

    def add(self, at_s: float, ended: Iterable[RequestRecord], flying: Sequence[InFlight]) -> None:
        """Write what has happened since the last line; the gaps between an answer's tokens are left out."""
        rows = [(e.index, e.status.value, e.sent_s, e.first_token_s, e.end_s, e.output_tokens, e.error) for e in ended]
        self._write({"at_s": at_s, "ended": rows, "flying": flying}, "a")

    def _write(self, content: Any, mode: str) -> None:
        with self._path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")


class ProgressReader:
    """Reads the progress of a run while it is written.

    Attributes:
        at_s: the time of the last line; None before the first.
    """

    def __init__(self, path: Path) -> None:
        self.at_s: float | None = None
        self._path = path
        self._read = 0
        self._records: dict[int, RequestRecord] = {}
        self._flying: Sequence[InFlight] = ()

    def advance(self) -> bool:
        """Read the lines that are new; return whether there is one beyond the plan."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return False
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        before = self.at_s
        for line in whole.splitlines():
            content = json.loads(line)
            if isinstance(content, list):
                self._records = {row[0]: _planned(*row) for row in content}
            else:
                self._take(content)
        return self.at_s != before

    def _take(self, content: Mapping[str, Any]) -> None:
        self.at_s, self._flying = content["at_s"], content["flying"]
        for index, status, sent, first, end, tokens, error in content["ended"]:
            known = {"sent_s": sent, "first_token_s": first, "end_s": end, "output_tokens": tokens, "error": error}
            self._records[index] = replace(self._records[index], status=RequestStatus(status), **known)

    @property
    def records(self) -> list[RequestRecord]:
        """A record of each planned request, by number; those in flight have no end and the status `not_sent`."""
        found = dict(self._records)
        for index, sent, first in self._flying:
            found[index] = replace(found[index], sent_s=sent, first_token_s=first)
        return [found[index] for index in sorted(found)]


def _planned(index: int, name: str, due: float | None, prompt_tokens: int, most_tokens: int) -> RequestRecord:
    return RequestRecord(index, name, RequestStatus.NOT_SENT, prompt_tokens, most_tokens, due)
