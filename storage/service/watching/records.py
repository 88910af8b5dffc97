"""Records of what those who watch a service get: plain, frozen, without SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.service.records import SubmissionState


@dataclass(frozen=True)
class Waiting:
    """Submissions of one kind of devices that wait: how many, and since when the oldest one has waited."""

    count: int
    since: datetime


@dataclass(frozen=True)
class Figures:
    """The queue in numbers.

    Attributes:
        states: number of submissions in each state, 0 included.
        waiting: those that wait, by kind of devices; a kind without one is left out.
        granted: names of the devices that submissions have.
    """

    states: Mapping[SubmissionState, int]
    waiting: Mapping[str, Waiting]
    granted: tuple[str, ...]


@dataclass(frozen=True)
class Message:
    """A message to a webhook that is still to be sent.

    Attributes:
        number: of its row.
        webhook: name of the server's webhook.
        key: the same for each attempt, and for no other message.
        data: what it says, of a submission: `id`, `owner`, `kind`, `state`, `reason`, `culprit`, `gpu_seconds`, and
            `created_at` and `ended_at` in ISO 8601; about deployed servers also `drift`, and when it was `found_at`.
        created_at: when the submission ended, or its servers had drifted.
        attempts: attempts that failed.
    """

    number: int
    webhook: str
    key: str
    data: Mapping[str, Any]
    created_at: datetime
    attempts: int = 0
