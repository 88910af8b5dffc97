"""Server-sent events (the HTML standard's `text/event-stream`), and the position of a reader in them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from storage.service.records import ENDED, SubmissionState
from tuner.client.flows import Outcome
from tuner.client.replies import StudyEvent

SILENCE_S = 60.0
"""Seconds without a byte after which a stream counts as lost; the server writes every 15 s."""


PAUSE_S = 0.5
"""Seconds before a stream is reopened that the server closed without an event, as it does when it is stopped."""


@dataclass
class EventPlace:
    """How far the events of one study were read.

    Attributes:
        number: of the last event that was read.
        state: of the study after it, as far as it is known.
        follows: whether the present stream waits for further events.
        lost_by: how the present stream was lost or refused; None: it came to its end.
        losses: streams in a row that were lost before their first line.
    """

    path: str = ""
    number: int = 0
    state: SubmissionState | None = None
    follows: bool = False
    lost_by: Outcome | None = None
    losses: int = 0
    _fields: dict[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the study has ended, as far as the events were read."""
        return self.state in ENDED

    @property
    def request(self) -> dict[str, Any]:
        """The arguments of httpx's request."""
        query, headers = {"follow": str(self.follows).lower()}, {"Last-Event-ID": str(self.number)}
        return {"method": "GET", "url": self.path, "params": query, "headers": headers, "timeout": SILENCE_S}

    def begin(self, follows: bool) -> None:
        """Begin to read a new stream; drop an incomplete event of the last one."""
        self.follows, self.lost_by, self._fields = follows, None, {}

    def read(self, line: str) -> StudyEvent | None:
        """Read a line of the stream, and return the event that it completes, if that is a new one."""
        self.losses = 0
        if line:
            name, _, value = line.partition(":")
            if name:  # else a comment
                self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields or int(fields["id"]) <= self.number:
            return None
        data = json.loads(fields["data"])
        at = datetime.fromisoformat(data.pop("at"))
        event = StudyEvent(int(fields["id"]), fields["event"], at, data)
        self.number, self.state = event.number, event.state or self.state
        return event
