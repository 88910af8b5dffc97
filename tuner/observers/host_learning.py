"""What a study learns of the host that it measures on: a lesson of each trial, and the posterior of all lessons.

Measured trials alone have lessons. A study predicts with what the host's lessons told when it was created, and with
those of its own search: a function of its stored trials, so that a resumed study has the predictions of an
uninterrupted one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter

from records.lessons import Lesson, Site
from records.trials import Config, Provenance, TrialKind, TrialRecord
from search_spaces import HardwareProfile
from storage.errors import StorageError
from storage.store import Store
from tuner.cancellation import CancelToken
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.learning import (
    HostPosterior,
    Linearised,
    Metrics,
    follow,
    lesson_of,
    linearised,
    posterior,
)
from tuner.engines.simulator.parameters import parameters_digest
from tuner.engines.simulator.prediction import Platform
from tuner.errors import TunerError
from tuner.results import text
from tuner.specs import TrialSpec
from tuner.study.protocols import StudyObserver
from tuner.study.simulator_prior import BROKEN, REFUSED, server_with, simulator_of
from tuner.study.specification.spec import StudySpec
from tuner.workloads.spec import SingleWorkload, Suite

_log = logging.getLogger(__name__)

_NICENESS = 19
"""Lessons are computed beside a benchmark, which they must not disturb."""
_PATIENCE_S = 60.0
_LOOK_S = 0.2
_DRAFTS = "--speculative-config"
"""What is accepted of drafts depends on the text, and says nothing of the host."""


def this_host() -> str:
    """Return the name of this host, as workers have it."""
    return os.uname().nodename


def learned_host(store: Store, spec: StudySpec, engine: EngineInfo, hosts: Sequence[str]) -> HostPosterior | None:
    """Return what the lessons of a study's hosts told when it was created; None without any, or if it is simulated."""
    if engine.provenance is not Provenance.MEASURED:
        return None
    stored = store.study(spec.name)
    before = None if stored is None else stored.created_at
    card, program = spec.space.context.hardware.name, engine.executable or ""
    return posterior(store.lessons(hosts, card, engine.version, parameters_digest(), program, before))


def learned_in(store: Store, host: str | None, card: HardwareProfile, version: str) -> HostPosterior | None:
    """Return what is learned of a host, None: of this one, with the installation that was measured last."""
    found = store.lessons([host or this_host()], card.name, version, parameters_digest())
    return posterior([lesson for lesson in found if lesson.site == found[-1].site])


class HostLearner(StudyObserver):
    """Computes the lessons of a study's trials in a thread, stores them, and says what all of them tell.

    What a lesson needs beside the measurement is predicted while its trial runs.
    """

    def __init__(
        self,
        store: Store,
        spec: StudySpec,
        engine: EngineInfo,
        note: Callable[[str], None] = lambda line: None,
        stop: CancelToken | None = None,
    ) -> None:
        """Begin with the trials of earlier runs; `note` receives a line each time that the predictions change.

        Once `stop` is set, nothing is computed or waited for any more; the next run computes what is missing.
        """
        self._store, self._spec, self._engine, self._note = store, spec, engine, note
        self._learned, self._own = spec.learned, list[Lesson]()
        self._of_search, self._every = deque[Future[Lesson | None]](), list[Future[Lesson | None]]()
        self._ahead: dict[tuple[int, int, int], Linearised | None] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._stop = stop or threading.Event()
        stored = replace(spec, learned=None)
        self._search = simulator_of(replace(stored, workload=spec.searched_workload), engine)
        self._rounds = simulator_of(stored, engine)
        if engine.provenance is Provenance.MEASURED and self._rounds is not None and not spec.engines:
            self._pool = ThreadPoolExecutor(1, initializer=_lower_priority)
            known = store.lessons_of(spec.name)
            done = [record for record in store.trials(spec.name, finished=True) if record.outcome is not None]
            for record in sorted(done, key=attrgetter("outcome.ended_at")):
                self._add(record, known.get((record.number, record.round)))

    def started(self, spec: TrialSpec, slot: int) -> None:
        if self._pool is not None and spec.kind is not TrialKind.CAPACITY and not isinstance(spec.workload, Suite):
            self._pool.submit(self._look_ahead, spec.number, spec.round, spec.kind, spec.config, spec.workload)

    def finished(self, record: TrialRecord) -> None:
        """Queue a trial, if there is something to learn from it."""
        self._add(record)

    def _add(self, record: TrialRecord, known: Lesson | None = None) -> None:
        if self._pool is None or not is_teachable(record):
            return
        if known is not None and known.site.predictor == parameters_digest():
            lesson: Future[Lesson | None] = Future()
            lesson.set_result(known)
        else:
            lesson = self._pool.submit(self._compute, record)
        self._every.append(lesson)
        if not record.round and record.kind is not TrialKind.REDUCED:
            self._of_search.append(lesson)

    def learned(self) -> HostPosterior | None:
        """Return what the study predicts with: the lessons from before it was created, and those of its own search.

        It is the same object until a lesson moves the predictions, see `follow`.
        """
        before = self._learned
        while self._of_search and self._waited_for(self._of_search[0]):
            lesson = self._of_search.popleft().result()
            if lesson is not None:
                self._own.append(lesson)
                self._learned = follow(self._spec.learned, self._learned, self._own)
        if self._learned is not None and self._learned is not before:
            shown = self._learned.to_dict()
            self._store.update_study(self._spec.name, facts={"learned": shown})
            self._note(f"predictions are corrected by {text.learned(shown)}")
        return self._learned

    def _waited_for(self, lesson: Future[Lesson | None]) -> bool:
        """Wait for a lesson; return False if the study was stopped."""
        while not lesson.done() and not self._stop.is_set():
            wait([lesson], _LOOK_S)
        return not self._stop.is_set()

    def close(self) -> None:
        """Wait for the lessons of queued trials; the next run computes those that a minute is too short for."""
        if self._pool is not None:
            if not self._stop.is_set():
                wait(self._every, _PATIENCE_S)
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _compute(self, record: TrialRecord) -> Lesson | None:
        """Store the lesson of a trial and return it; None if it has none."""
        try:
            lesson = self.lesson(record)
            if lesson is not None:
                self._store.add_lesson(record.study, record.number, record.round, lesson)
        except (*REFUSED, StorageError) as error:
            _log.info("nothing is learned from trial %s: %s", record.name, error)
            return None
        except BROKEN as error:
            _log.warning("nothing is learned from trial %s, the simulator failed: %s", record.name, error)
            return None
        return lesson

    def lesson(self, record: TrialRecord) -> Lesson | None:
        """Return the lesson of a trial; None if no metric of it is predicted. Errors are those of `server_with`."""
        outcome = record.outcome
        if outcome is None:
            return None
        repeat = outcome.repeats[0]
        key = record.number, record.round, repeat.seed
        linearise = partial(self._linearised, record.kind, record.config, repeat.seed)
        known = key in self._ahead
        found = self._ahead.pop(key) if known else linearise(self._start)
        if found is None:
            return None
        host, card = outcome.worker.partition("@")[2], self._spec.space.context.hardware.name
        site = Site(host, card, self._engine.version, self._engine.executable or "", parameters_digest())
        lesson = lesson_of(site, self._start, *found, repeat.metrics)
        told = None if lesson is None else posterior([*self._before(), lesson])
        near = None if told is None else linearise(told.point)
        return lesson if told is None or near is None else lesson_of(site, told.point, *near, repeat.metrics)

    @property
    def _start(self) -> Mapping[str, float]:
        """The parameters that the study began with. A lesson is computed there, and again where it puts the host."""
        return {} if self._spec.learned is None else self._spec.learned.point

    def _before(self) -> list[Lesson]:
        """Return the lessons from before the study, and those of its trials so far."""
        earlier = () if self._spec.learned is None else self._spec.learned.lessons
        done = [each.result() for each in self._every if each.done() and not each.cancelled()]
        return [*earlier, *(each for each in done if each is not None)]

    def _look_ahead(self, number: int, round_: int, kind: TrialKind, config: Config, workload: SingleWorkload) -> None:
        """Keep what the lesson of a trial needs; what fails here fails again in `_compute`, which says so."""
        with suppress(*REFUSED, *BROKEN):
            seed = workload.repeat_seed(0)
            self._ahead[number, round_, seed] = self._linearised(kind, config, seed, self._start)

    def _linearised(self, kind: TrialKind, config: Config, seed: int, point: Mapping[str, float]) -> Linearised | None:
        """Return the prediction of a benchmark and its slopes; None where nothing is predicted or learned."""
        simulator = self._rounds if kind is TrialKind.CONFIRM else self._search
        shape = self._spec.space.context.model
        if simulator is None or shape is None:
            return None
        words, environment, served = server_with(self._spec, config, shape)
        if any(word.startswith(_DRAFTS) for word in words):
            return None
        own = replace(simulator, workload=simulator.workload.model_copy(update={"seed": seed}))

        def predict(platform: Platform) -> Metrics | None:
            if self._stop.is_set():
                raise TunerError("the study was stopped")
            return replace(own, platform=platform).metrics(words, environment, served)

        return linearised(own.platform, predict, point, experts=served.is_mixture_of_experts)


def _lower_priority() -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def is_teachable(record: TrialRecord) -> bool:
    """Return whether a trial tells about its host: every request succeeded, and the warm-up had settled."""
    outcome = record.outcome
    if outcome is None or not outcome.succeeded or outcome.provenance is not Provenance.MEASURED:
        return False
    settled = outcome.server is None or outcome.server.warmup_settled is not False
    return settled and record.kind is not TrialKind.CAPACITY and not outcome.repeats[0].failed
