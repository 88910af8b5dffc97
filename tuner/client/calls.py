"""Every call of the service's API, described once: `Client` and `AsyncClient` have these methods."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from tuner.client.failures import PATIENT_WAITS_S, WAITS_S, RefusedError, wait_before_repeating
from tuner.client.files import new_id, with_contents, write_export, write_report
from tuner.client.flows import Call, Flow, Flows, Method, Several
from tuner.client.replies import (
    LogPart,
    ServiceToken,
    StudyEvent,
    StudyPage,
    SubmittedStudy,
    SubmittedTrial,
    parsed,
)
from tuner.client.streams import PAUSE_S, EventPlace
from tuner.settings.declared import QUEUE, settings_of
from tuner.settings.keywords import method_takes
from tuner.settings.submit import SubmitSettings

Answer = TypeVar("Answer")
POLL_S = 2.0
"""Seconds between two polls of a study that `wait` waits for."""

SLOW_S = 300.0
"""Timeout of a report in seconds: the server draws its figures first."""


def path_of(id: str, rest: str = "") -> str:
    """Return the URL path of a study; the id is quoted, so that it is one segment."""
    name = quote(id, safe="")
    return f"/v1/studies/{'%2E' * len(name) if name in ('.', '..') else name}{rest}"


class Calls:
    """The methods of both clients.

    Attributes:
        server: the server's URL.
    """

    server: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server!r})"

    def _send(self, call: Call, *, patient: bool = False) -> Flow[Any]:
        """Send a request, again after a lost connection, and return the answer; None if a lost attempt had succeeded.

        A further attempt then gets the status `call.done_by`, such as 404 for a study that is already deleted.
        """
        waits = PATIENT_WAITS_S if patient else WAITS_S
        for attempt in itertools.count():
            outcome = yield call
            if attempt and isinstance(outcome, httpx.Response) and outcome.status_code == call.done_by:
                return None
            wait = wait_before_repeating(outcome, attempt, self.server, waits, repeatable=call.repeatable)
            if wait is None:
                return outcome
            yield wait
        raise AssertionError  # `count` does not end

    def _ask(self, kind: type[Answer], call: Call, *, patient: bool = False) -> Flow[Answer]:
        """Send a request, and return its JSON as a record."""
        reply = yield from self._send(call, patient=patient)
        return parsed(reply, kind)

    def _get(self, id: str, rest: str, timeout_s: float = 60.0, **query: Any) -> Flow[Any]:
        """Ask for a part of a study that is not one JSON object, and return the answer."""
        return self._send(Call("GET", path_of(id, rest), query, timeout_s=timeout_s))

    def _study(self, id: str, *, patient: bool = False) -> Flow[SubmittedStudy]:
        return self._ask(SubmittedStudy, Call("GET", path_of(id)), patient=patient)

    @Method
    @method_takes(SubmitSettings)
    def submit(self, **given: Any) -> Flow[SubmittedStudy]:
        """Submit a study. The same id with the same settings is accepted again and changes nothing.

        The contents of the files that settings name are sent, and of the settings those that are given.
        """
        queue = {name for name, (_, setting) in settings_of(SubmitSettings).items() if setting.panel == QUEUE}
        asked = {name: value for name, value in given.items() if name not in queue}
        body = {name: value for name, value in given.items() if name in queue and value is not None}
        body = {**body, "id": given.get("id") or new_id(), "settings": with_contents(asked)}
        return self._ask(SubmittedStudy, Call("POST", "/v1/studies", body=body))

    @Method
    def predict(self, settings: Mapping[str, Any]) -> Flow[dict[str, Any]]:
        """Return the predicted metrics of one configuration, with error bands; nothing is started or stored.

        Args:
            settings: keywords of `tuner.optimize` that a prediction depends on.
        """
        body = {"settings": with_contents(settings)}
        return self._ask(dict[str, Any], Call("POST", "/v1/simulate", body=body))

    @Method
    def study(self, id: str) -> Flow[SubmittedStudy]:
        """Return a study."""
        return self._study(id)

    @Several
    def studies(
        self, *, owner: str | None = None, states: Sequence[str] = (), text: str | None = None
    ) -> Flows[SubmittedStudy]:
        """Yield the studies that the token may read, the newest first, without their settings.

        Args:
            owner: only this owner's.
            states: only those in one of these states; empty: all.
            text: only those whose id contains it.
        """
        query: dict[str, Any] = {"owner": owner, "state": [*states], "text": text, "limit": 200, "after": None}
        while True:
            page = yield from self._ask(StudyPage, Call("GET", "/v1/studies", query))
            yield [*page.studies]
            if page.next is None:
                return
            query["after"] = page.next

    @Method
    def trials(self, id: str, after: int = -1) -> Flow[list[SubmittedTrial]]:
        """Return the trials and the measurements in rounds whose number is above `after`, by number and round."""
        found: list[SubmittedTrial] = []
        while True:
            query = {"after": found[-1].number if found else after}
            page = yield from self._ask(list[SubmittedTrial], Call("GET", path_of(id, "/trials"), query))
            if not page:
                return found
            found += page

    @Method
    def conclusion(self, id: str) -> Flow[dict[str, Any] | None]:
        """Return the conclusion of a study: winner, reason, finalists, flag effects, front; None while it has none.

        A study of servers for a load has the document of `tuner size --json`.
        """
        try:
            return (yield from self._ask(dict[str, Any], Call("GET", path_of(id, "/conclusion"))))
        except RefusedError as error:
            if error.status != 404:
                raise
        yield from self._study(id)  # an unknown study is an error
        return None

    @Method
    def summary(self, id: str) -> Flow[dict[str, Any]]:
        """Return the result of a study as its report has it: a verdict, and sections of texts, tables and figures."""
        return self._ask(dict[str, Any], Call("GET", path_of(id, "/summary"), timeout_s=SLOW_S))

    @Several
    def events(self, id: str, after: int = 0, *, follow: bool = True) -> Flows[StudyEvent]:
        """Yield the events of a study, each once and in order, until the study has ended.

        A lost connection is taken up again behind the last event, for up to five minutes.

        Args:
            id: the study.
            after: number of the event after which to begin.
            follow: whether to wait for further events.
        """
        place, patient = EventPlace(path_of(id, "/events"), after), False
        while True:
            place.state = (yield from self._study(id, patient=patient)).state
            patient = True
            yield from self._connect(place, follow=False)
            if place.lost_by is not None:
                continue
            if not follow or place.ended:
                return
            number = place.number
            yield from self._connect(place, follow=True)
            if place.lost_by is None and place.number == number:
                yield PAUSE_S

    def _connect(self, place: EventPlace, *, follow: bool) -> Flow[None]:
        """Read the events of one connection. One that is lost is counted, and the next one waits."""
        place.begin(follow)
        yield place
        if place.lost_by is not None:
            yield wait_before_repeating(place.lost_by, place.losses, self.server, PATIENT_WAITS_S) or 0.0
            place.losses += 1

    @Method
    def wait(self, id: str, timeout_s: float | None = None) -> Flow[SubmittedStudy]:
        """Wait until a study has ended, and return it.

        Raises:
            TimeoutError: if it has not ended within `timeout_s` seconds.
        """
        deadline, patient = None if timeout_s is None else time.monotonic() + timeout_s, False
        while True:
            found = yield from self._study(id, patient=patient)
            patient = True
            if found.ended:
                return found
            left = POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the study {id!r} is {found.state.value} after {timeout_s:g} s")
            yield min(POLL_S, left)

    def _verb(self, id: str, name: str) -> Flow[SubmittedStudy]:
        reply = yield from self._send(Call("POST", path_of(id, f":{name}"), done_by=409))
        return (yield from self._study(id)) if reply is None else parsed(reply, SubmittedStudy)

    @Method
    def stop(self, id: str) -> Flow[SubmittedStudy]:
        """Let running trials finish, and the study conclude from what was measured."""
        return self._verb(id, "stop")

    @Method
    def cancel(self, id: str) -> Flow[SubmittedStudy]:
        """End a study at once, without a conclusion."""
        return self._verb(id, "cancel")

    @Method
    def resume(self, id: str) -> Flow[SubmittedStudy]:
        """Queue a stopped, cancelled or failed study again."""
        return self._verb(id, "resume")

    @Method
    def delete(self, id: str) -> Flow[None]:
        """Delete an ended study with its trials and files."""
        yield from self._send(Call("DELETE", path_of(id), done_by=404))

    @Method
    def watch_servers(self, id: str, urls: Sequence[str], window_s: float = 300.0) -> Flow[SubmittedStudy]:
        """Let the service compare deployed servers with an ended study, until `unwatch_servers`.

        Args:
            id: the study.
            urls: addresses of servers of vLLM, which the service's operator allows.
            window_s: seconds of a window.
        """
        body = {"urls": [*urls], "window_s": window_s}
        return self._ask(SubmittedStudy, Call("PUT", path_of(id, "/watch"), body=body))

    @Method
    def unwatch_servers(self, id: str) -> Flow[SubmittedStudy]:
        """Let the service compare deployed servers with a study no more."""
        return self._ask(SubmittedStudy, Call("DELETE", path_of(id, "/watch")))

    @Method
    def report(self, id: str, path: str | Path, *others: str) -> Flow[Path]:
        """Write the report of a study, one HTML file, and return its path.

        Args:
            id: the study.
            path: the file.
            others: studies to compare it with.

        Raises:
            SettingError: if the path has another file, or the file cannot be written.
        """
        reply = yield from self._get(id, "/report", SLOW_S, other=[*others])
        return write_report(reply.content, Path(path), ", ".join((id, *others)))

    @Method
    def export(self, id: str, path: str | Path, format: str = "script", trial: int | None = None) -> Flow[Path]:
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
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", target.name).lstrip("._-")[:100] or None
        reply = yield from self._get(id, "/export", format=format, trial=trial, file=plain)
        several = reply.headers.get("content-type", "").startswith("application/json")
        files = parsed(reply, dict[str, str]) if several else {target.name: reply.content.decode()}
        return write_export(files, target, format, id)

    @Method
    def records(self, id: str) -> Flow[list[dict[str, Any]]]:
        """Return a study as the server's database has it; see `tuner.use_cases.files`."""
        reply = yield from self._get(id, "/records", SLOW_S)
        return [json.loads(line) for line in reply.content.splitlines()]

    @Method
    def log(self, id: str, offset: int = 0) -> Flow[LogPart]:
        """Return a part of the driver's log from a byte on; the part behind the end of the log is empty."""
        reply = yield from self._get(id, "/log", offset=offset)
        return LogPart(reply.content, offset, int(reply.headers.get("Tuner-Log-Size", offset + len(reply.content))))

    @Method
    def chart(self, id: str, name: str) -> Flow[dict[str, Any]]:
        """Return a figure of the report, such as `progress`, as Plotly's JSON.

        Raises:
            RefusedError: if the study has nothing to draw it from.
        """
        found = yield from self._ask(dict[str, Any], Call("GET", path_of(id, "/charts"), {"name": [name]}))
        if name not in found:
            raise RefusedError(f"the study {id!r} has nothing to draw the chart {name!r} from", 404)
        return found[name]["figure"]  # type: ignore[no-any-return]  # JSON

    @Method
    def queue(self) -> Flow[dict[str, Any]]:
        """Return the devices, who has them, and the number of studies by state."""
        return self._ask(dict[str, Any], Call("GET", "/v1/queue"))

    @Method
    def tokens(self) -> Flow[list[ServiceToken]]:
        """Return all tokens without their secrets; for admins."""
        return self._ask(list[ServiceToken], Call("GET", "/v1/tokens"))

    @Method
    def add_token(
        self, name: str, *, owner: str | None = None, role: str = "user", days: int | None = None
    ) -> Flow[ServiceToken]:
        """Make a token; its secret is in the answer's `token`, once. For admins.

        Args:
            name: of the token.
            owner: whose studies it submits and reads; None: of the same name.
            role: `viewer`, `user` or `admin`.
            days: until it expires; None: it does not.
        """
        body: Mapping[str, Any] = {"name": name, "owner": owner or name, "role": role, "days": days}
        # It is not repeated once it was sent: its answer alone has the secret.
        return self._ask(ServiceToken, Call("POST", "/v1/tokens", body=body, repeatable=False))

    @Method
    def revoke_token(self, name: str) -> Flow[ServiceToken]:
        """Revoke a token; for admins."""
        return self._ask(ServiceToken, Call("POST", f"/v1/tokens/{quote(name, safe='')}:revoke"))
