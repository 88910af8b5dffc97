"""The client of the service for programs: `tuner.Client`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from tuner.client import calls
from tuner.client.address import find_address
from tuner.client.calls import Call
from tuner.client.failures import (
    PATIENT_WAITS_S,
    WAITS_S,
    RefusedError,
    wait_before_reconnecting,
    wait_before_repeating,
)
from tuner.client.output import write_export, write_report
from tuner.client.replies import LogPart, ServiceToken, StudyEvent, SubmittedStudy, SubmittedTrial
from tuner.client.streams import PAUSE_S, SILENCE_S, EventPlace
from tuner.settings.keywords import method_takes
from tuner.settings.study import SubmitSettings

Answer = TypeVar("Answer")
POLL_S = 2.0
"""Seconds between two looks at a study that is waited for."""


class Client:
    """Asks a `tuner serve`, and asks again after a lost connection.

    Args:
        server: its URL; None: TUNER_SERVER.
        token: None: TUNER_TOKEN. No text or error shows it.
        insecure: whether the token may be sent without TLS to another machine.
        transport: how httpx sends requests; None: over the network.
        sleep: waits before a request is sent again.

    Raises:
        SettingError: by every method, for a value that the server refuses, with its field; and by this one, see
            `tuner.client.address.find_address`.
        UserError: by every method, if the server refuses a request: no valid token, not allowed, not there, or not in
            this state.
        InfrastructureError: by every method, if the server is not reached, or fails.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        insecure: bool = False,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        address = find_address(server, token, insecure=insecure)
        self.server = address.url
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=address.url,
            headers={"Authorization": f"Bearer {address.token}"},
            trust_env=not address.is_loopback,
            verify=address.authorities(),
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"Client({self.server!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @method_takes(SubmitSettings)
    def submit(self, **given: Any) -> SubmittedStudy:
        """Submit a study. The same id with the same settings is accepted again and changes nothing.

        The contents of the files that settings name are sent, and of the settings those that are given.
        """
        return self._ask(calls.submit(given))

    def study(self, id: str) -> SubmittedStudy:
        """Return a study."""
        return self._ask(calls.study(id))

    def studies(
        self, *, owner: str | None = None, states: Sequence[str] = (), text: str | None = None
    ) -> Iterator[SubmittedStudy]:
        """Yield the studies that the token may read, the newest first, without their settings.

        Args:
            owner: only this owner's.
            states: only those in one of these states; empty: all.
            text: only those whose id contains it.
        """
        after: str | None = None
        while True:
            query = {"owner": owner, "state": [*states], "text": text, "after": after, "limit": 200}
            found, after = self._ask(calls.page(query))
            yield from found
            if after is None:
                return

    def trials(self, id: str, after: int = -1) -> list[SubmittedTrial]:
        """Return the trials and the measurements in rounds whose number is above `after`, by number and round."""
        found: list[SubmittedTrial] = []
        while page := self._ask(calls.trials(id, found[-1].number if found else after)):
            found += page
        return found

    def conclusion(self, id: str) -> dict[str, Any] | None:
        """Return what a study concluded: winner, reason, finalists, flag effects, front; None before it did."""
        try:
            return self._ask(calls.document(id, "/conclusion"))
        except RefusedError as error:
            if error.status != 404:
                raise
        self.study(id)  # an unknown study is an error
        return None

    def events(self, id: str, after: int = 0, *, follow: bool = True) -> Iterator[StudyEvent]:
        """Yield the events of a study, each once and in order, until the study has ended.

        A lost connection is taken up again behind the last event, for up to five minutes.

        Args:
            id: the study.
            after: number of the event after which to begin.
            follow: whether to wait for further events.
        """
        place = EventPlace(after)
        waits: tuple[float, ...] = WAITS_S
        while True:
            place.state = self._ask(calls.study(id), waits).state
            waits = PATIENT_WAITS_S
            yield from self._stream(id, place, follow=False)
            if not place.complete:
                continue
            if not follow or place.ended:
                return
            number = place.number
            yield from self._stream(id, place, follow=True)
            if place.complete and place.number == number:
                self._sleep(PAUSE_S)

    def _stream(self, id: str, place: EventPlace, *, follow: bool) -> Iterator[StudyEvent]:
        """Yield the events of one connection; one that is lost is counted, and the next one waits."""
        address = calls.path_of(id, "/events")
        headers, query = {"Last-Event-ID": str(place.number)}, {"follow": str(follow).lower()}
        place.connected()
        try:
            with self._http.stream("GET", address, params=query, headers=headers, timeout=SILENCE_S) as reply:
                if not reply.is_success:
                    reply.read()
                    self._sleep(wait_before_reconnecting(place, reply, self.server))
                    return
                for line in reply.iter_lines():
                    event = place.read(line)
                    if event is not None:
                        yield event
                        if follow and place.ended:
                            return
            place.complete = True
        except httpx.RequestError as error:
            self._sleep(wait_before_reconnecting(place, error, self.server))

    def wait(self, id: str, timeout_s: float | None = None) -> SubmittedStudy:
        """Wait until a study has ended, and return it.

        Raises:
            TimeoutError: if it has not ended within `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waits: tuple[float, ...] = WAITS_S
        while True:
            found = self._ask(calls.study(id), waits)
            waits = PATIENT_WAITS_S
            if found.ended:
                return found
            left = POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the study {id!r} is {found.state.value} after {timeout_s:g} s")
            self._sleep(min(POLL_S, left))

    def stop(self, id: str) -> SubmittedStudy:
        """Let running trials finish, and the study conclude from what was measured."""
        return self._ask(calls.verb(id, "stop"))

    def cancel(self, id: str) -> SubmittedStudy:
        """End a study at once, without a conclusion."""
        return self._ask(calls.verb(id, "cancel"))

    def resume(self, id: str) -> SubmittedStudy:
        """Queue a stopped, cancelled or failed study again."""
        return self._ask(calls.verb(id, "resume"))

    def delete(self, id: str) -> None:
        """Delete an ended study with its trials and files."""
        self._ask(calls.delete(id))

    def report(self, id: str, path: str | Path, *others: str) -> Path:
        """Write the report of a study, one HTML file, and return its path.

        Args:
            id: the study.
            path: the file.
            others: studies to compare it with.

        Raises:
            SettingError: if the path has another file, or the file cannot be written.
        """
        return write_report(self._ask(calls.report(id, others)), Path(path), ", ".join((id, *others)))

    def export(self, id: str, path: str | Path, format: str = "script", trial: int | None = None) -> Path:
        """Write a file that starts the server of a trial, and return its path.

        Formats with a second file write it beside the first.

        Args:
            id: the study.
            path: the file.
            format: see `tuner.Study.export`.
            trial: number of the trial; None: the winner.

        Raises:
            SettingError: if the path has another file, or the file cannot be written.
        """
        target = Path(path)
        return write_export(self._ask(calls.export(id, target.name, format, trial)), target, format, id)

    def records(self, id: str) -> list[dict[str, Any]]:
        """Return a study as the server's database has it; see `tuner.use_cases.files`."""
        return self._ask(calls.records(id))

    def log(self, id: str, offset: int = 0) -> LogPart:
        """Return a part of the driver's log from a byte on; the part behind the end of the log is empty."""
        return self._ask(calls.log(id, offset))

    def chart(self, id: str, name: str) -> dict[str, Any]:
        """Return a figure of the report, such as `progress`, as Plotly's JSON."""
        return self._ask(calls.chart(id, name))

    def queue(self) -> dict[str, Any]:
        """Return the devices, who has them, and the number of studies by state."""
        return self._ask(calls.queue())

    def tokens(self) -> list[ServiceToken]:
        """Return all tokens without their secrets; for admins."""
        return self._ask(calls.tokens())

    def add_token(
        self, name: str, *, owner: str | None = None, role: str = "user", days: int | None = None
    ) -> ServiceToken:
        """Make a token; its secret is in the answer's `token`, once. For admins.

        Args:
            name: of the token.
            owner: whose studies it submits and reads; None: of the same name.
            role: `viewer`, `user` or `admin`.
            days: until it expires; None: it does not.
        """
        return self._ask(calls.add_token({"name": name, "owner": owner or name, "role": role, "days": days}))

    def revoke_token(self, name: str) -> ServiceToken:
        """Make a token worthless from now on; for admins."""
        return self._ask(calls.revoke_token(name))

    def _ask(self, call: Call[Answer], waits: tuple[float, ...] = WAITS_S) -> Answer:
        """Send a request until it is answered, and return what the answer says."""
        query = {name: value for name, value in call.query.items() if value is not None}
        outcome: httpx.Response | httpx.RequestError
        for attempt in itertools.count():
            try:
                outcome = self._http.request(
                    call.method, call.path, params=query, json=call.body, timeout=call.timeout_s
                )
            except httpx.RequestError as error:
                outcome = error
            if attempt and call.done_by is not None and calls.is_status(outcome, call.done_by[0]):
                return self._ask(call.done_by[1], waits)
            wait = wait_before_repeating(call, outcome, attempt, self.server, waits)
            if wait is None and isinstance(outcome, httpx.Response):
                return call.read(outcome)
            self._sleep(wait or 0.0)
        raise AssertionError  # `count` does not end
