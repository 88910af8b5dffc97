"""Watch deployed servers for ended studies: when their traffic is no longer that of the study, propose a recheck.

Windows, distances and limits are those of `tuner server drift` (`tuner.scoring.drift`). The scheduling process reads
the servers. What it compared last is in the submission's row; counters and windows in a row are in memory, so after a
restart of that process three windows pass before a new deviation counts. Nothing else is changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from storage import Store
from storage.service.records import Submission
from storage.service.store import ServiceStore
from tuner.errors import SettingError, UserError
from tuner.results.text import count, number
from tuner.scoring.drift import WINDOWS, Deviation, DriftWatch, Promise, Window
from tuner.service.scheduler.scheduler import QueueState, step_while_leading
from tuner.service.watching.deployed import DeployedServers
from tuner.use_cases.drift import Counters, promise_of, read_pages, window_between

AT_ONCE = 4
"""Studies whose servers are read at once."""

Read = Callable[[Sequence[str]], Counters]


def promised(store: Store, id: str) -> Promise:
    """Return what a study promises.

    Raises:
        SettingError: if it has no winner, or several workloads.
    """
    record = store.study(id)
    if record is None:
        raise SettingError("study", id, "it has no winner yet", "name a study that has ended")
    return promise_of(record, store.trials(id))


@dataclass
class _Watching:
    """What is in memory of a watched study: when its watch began, the windows, and the counters of the last read."""

    since: str
    windows: DriftWatch
    before: Counters
    at: datetime


class DriftWatcher:
    """Reads deployed servers while this process schedules, so that one process at a time reads.

    `note` gets a line about a fault, and the study that it is about; `read` returns what servers count now.
    """

    def __init__(
        self,
        service: ServiceStore,
        store: Store,
        servers: DeployedServers,
        note: Callable[[str, str | None], None],
        state: QueueState,
        read: Read = read_pages,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._service, self._store, self._servers, self._note = service, store, servers, note
        self._state, self._read, self._now = state, read, now
        self._watching: dict[str, _Watching] = {}
        self._stop = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Step until `stop` is set; of the studies whose servers are due then, no further one is read."""
        self._stop = stop
        step_while_leading(self.step, self._state, stop, self._note, "no deployed server was read")

    def step(self) -> None:
        """Read the servers of each study whose window has ended."""
        found = self._service.watched()
        ids = {each.id for each in found}
        self._watching = {id: each for id, each in self._watching.items() if id in ids}
        due = [each for each in found if self._is_due(each)]
        if due:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                for _ in pool.map(self._look, due):
                    pass

    def _is_due(self, submission: Submission) -> bool:
        watch = submission.watch or {}
        known = self._watching.get(submission.id)
        if known is None or known.since != watch["since"]:
            tried = watch.get("at")
            failed = watch.get("problem") is not None and tried is not None
            return not failed or self._passed(datetime.fromisoformat(str(tried)), watch)
        return self._passed(known.at, watch)

    def _passed(self, since: datetime, watch: Mapping[str, Any]) -> bool:
        return (self._now() - since).total_seconds() >= float(watch["window_s"])

    def _look(self, submission: Submission) -> None:
        """Read the servers of a study, and store what was compared or why nothing was."""
        watch = dict(submission.watch or {})
        if self._stop.is_set():
            return
        try:
            counters = self._read(self._servers.checked(watch["urls"]))
            now = self._now()
            window, drifted = self._compared(submission.id, watch, counters, now)
        except UserError as error:
            self._keep(submission.id, watch | {"problem": str(error), "at": self._now().isoformat()})
            return
        fresh = {each.name for each in drifted} - {*watch.get("drifted", {})}
        kept = watch | {"problem": None, "at": now.isoformat()}
        if window is not None:
            kept |= {"requests": window.requests, "drifted": {each.name: each.text for each in drifted}}
        self._keep(submission.id, kept, [each.text for each in drifted] if fresh else [])

    def _compared(
        self, id: str, watch: Mapping[str, Any], counters: Counters, now: datetime
    ) -> tuple[Window | None, list[Deviation]]:
        """Return the window that has ended, and what has drifted with it.

        None for the first read, and for servers that have started again. After a restart of this process, what had
        drifted before goes on, and is no new deviation.
        """
        known = self._watching.get(id)
        if known is None or known.since != watch["since"]:
            rows = dict.fromkeys(watch.get("drifted", {}), WINDOWS)
            windows = DriftWatch(promised(self._store, id), len(watch["urls"]), rows)
            self._watching[id] = _Watching(watch["since"], windows, counters, now)
            return None, []
        window = window_between(known.before, counters, (now - known.at).total_seconds())
        known.before, known.at = counters, now
        return window, [] if window is None else known.windows.add(window)

    def _keep(self, id: str, watch: dict[str, Any], drift: Sequence[str] = ()) -> None:
        text = text_of(id, watch)
        self._service.observed(id, {**watch, "text": text}, self._now(), text if drift else None)
        if drift:
            self._note(text, id)


def text_of(id: str, watch: Mapping[str, Any]) -> str:
    """Return what is known of a study's deployed servers, in a sentence that says what to do."""
    servers = count(len(watch["urls"]), "server")
    if watch.get("problem") is not None:
        return f"{servers}: {watch['problem']}"
    if watch.get("drifted"):
        what = "; ".join(watch["drifted"].values())
        return f"{servers}: {what}, in {WINDOWS} windows or more; recheck the study: tuner recheck {id}"
    if watch.get("requests") is None:
        return f"{servers}: watched, no window has ended yet"
    return f"{servers}: as in the study, {number(watch['requests'])} requests in the last window"
