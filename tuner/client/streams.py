"""Server-sent events (the HTML standard's `text/event-stream`), and how far a reader of them is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from storage.service.records import ENDED, SubmissionState
from tuner.client.replies import StudyEvent

SILENCE_S = 60.0
"""Seconds without a byte after which a stream counts as lost; the server writes every 15 s."""


PAUSE_S = 0.5
"""Seconds before a stream is opened again that the server ended without an event: it is being stopped."""


@dataclass
class EventPlace:
    """How far the events of one study were read.

    Attributes:
        number: of the last event that was read.
        state: of the study after it, as far as it is known.
        complete: whether the present stream came to its end.
        losses: streams in a row that were lost before their first line.
    """

    number: int = 0
    state: SubmissionState | None = None
    complete: bool = False
    losses: int = 0
    _fields: dict[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the study has ended, as far as the events were read."""
        return self.state in ENDED

    def connected(self) -> None:
        """Begin to read a new stream: a half event of the last one is forgotten."""
        self._fields, self.complete = {}, False

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
