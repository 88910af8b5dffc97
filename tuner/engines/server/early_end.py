"""Looks at running requests: a benchmark whose trial cannot win any more and a warm-up that only fails end early."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tuner.engines.base import Watch
from tuner.errors import TrialCut
from tuner.loadgen.progress import ProgressReader
from tuner.workloads.progress import RunProgress
from tuner.workloads.results import RequestRecord, RequestStatus

_LOOKING_SHARE = 0.05
"""Share of a processor that looking at a running benchmark may take: a server may need the others."""


class BenchmarkLook:
    """Looks at a benchmark when the load generator has written its progress."""

    def __init__(self, watch: Watch, reader: ProgressReader) -> None:
        self._watch, self._reader, self._next_s = watch, reader, 0.0

    def raise_if_lost(self) -> None:
        """Return if the trial can still win.

        Raises:
            TrialCut: if it cannot.
        """
        began = time.monotonic()
        if began < self._next_s or not self._reader.advance() or self._reader.at_s is None:
            return
        progress = RunProgress(self._reader.records, self._watch.slos, self._watch.users)
        cut = self._watch.look(progress, self._reader.at_s)
        if cut is not None:
            raise TrialCut(cut)
        ended = time.monotonic()
        self._next_s = ended + (ended - began) / _LOOKING_SHARE


class WarmupLook:
    """Looks whether the first requests of a warm-up all fail: two of each user, as the first may wait for a kernel."""

    def __init__(self, reader: ProgressReader, users: int, fail: Callable[[Sequence[RequestRecord]], None]) -> None:
        """Begin; `fail` gets the failed requests."""
        self._reader, self._least, self._fail = reader, 2 * users, fail
        self._one_succeeded = False

    def raise_if_lost(self) -> None:
        """Return if the server may answer yet.

        Raises:
            TrialFailed: by `fail`.
        """
        if self._one_succeeded or not self._reader.advance():
            return
        sent = [record for record in self._reader.records if record.status is not RequestStatus.NOT_SENT]
        self._one_succeeded = any(record.completed for record in sent)
        if len(sent) >= self._least and not self._one_succeeded:
            self._fail(sent)
