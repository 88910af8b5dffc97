"""What a study learns of the host that it measures on: a lesson of each trial, and the posterior of earlier lessons.

Measured trials alone have lessons. A study predicts with what the host's lessons told when it was created, so that a
resumed study has the predictions of an uninterrupted one.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace

from records.lessons import Lesson, Site
from records.trials import Provenance, TrialKind, TrialRecord
from search_spaces import HardwareProfile, SpaceError
from storage.errors import StorageError
from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.learning import HostPosterior, lesson_of, linearised, posterior
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import parameters_digest
from tuner.engines.simulator.precision import ConfigRefused
from tuner.errors import TunerError
from tuner.observers.fan_out import SilentObserver
from tuner.study.simulator_prior import server_with, simulator_of
from tuner.study.specification.spec import StudySpec

_log = logging.getLogger(__name__)

_NICENESS = 19
"""Lessons are computed beside a benchmark, which they must not disturb."""
_PATIENCE_S = 60.0
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


class HostLearner(SilentObserver):
    """Computes the lessons of a study's trials in a thread, and stores them."""

    def __init__(self, store: Store, spec: StudySpec, engine: EngineInfo) -> None:
        """Begin with the trials of earlier runs that have no lesson."""
        self._store, self._spec, self._engine = store, spec, engine
        self._queue: queue.SimpleQueue[TrialRecord | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        stored = replace(spec, learned=None)
        self._of_search = simulator_of(replace(stored, workload=spec.searched_workload), engine)
        self._of_rounds = simulator_of(stored, engine)
        if engine.provenance is Provenance.MEASURED and self._of_rounds is not None and not spec.engines:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            taught = store.taught(spec.name)
            for record in store.trials(spec.name, finished=True):
                if (record.number, record.round) not in taught:
                    self.finished(record)

    def finished(self, record: TrialRecord) -> None:
        """Queue a trial, if there is something to learn from it."""
        if self._thread is not None and is_teachable(record):
            self._queue.put(record)

    def close(self) -> None:
        """Wait for the lessons of queued trials; the next run computes those that a minute is too short for."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_PATIENCE_S)
            self._closed.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
        while (record := self._queue.get()) is not None and not self._closed.is_set():
            try:
                lesson = self.lesson(record)
                if lesson is not None:
                    self._store.add_lesson(record.study, record.number, record.round, lesson)
            except (TunerError, SpaceError, ConfigRefused, StartFailed, StorageError) as error:
                _log.info("nothing is learned from trial %s: %s", record.name, error)
            except (ArithmeticError, LookupError, ValueError) as error:  # as in `SimulatorPrior.guard`
                _log.warning("nothing is learned from trial %s, the simulator failed: %s", record.name, error)

    def lesson(self, record: TrialRecord) -> Lesson | None:
        """Return the lesson of a trial; None if no metric of it is predicted. Errors are those of `server_with`."""
        outcome, shape = record.outcome, self._spec.space.context.model
        simulator = self._of_rounds if record.kind is TrialKind.CONFIRM else self._of_search
        if simulator is None or shape is None or outcome is None:
            return None
        repeat = outcome.repeats[0]
        words, environment, served = server_with(self._spec, record.config, shape)
        if any(word.startswith(_DRAFTS) for word in words):
            return None
        own = replace(simulator, workload=simulator.workload.model_copy(update={"seed": repeat.seed}))
        point = {} if self._spec.learned is None else self._spec.learned.point
        found = linearised(
            own.platform,
            lambda platform: replace(own, platform=platform).metrics(words, environment, served),
            point,
            experts=served.is_mixture_of_experts,
        )
        if found is None:
            return None
        host, card = outcome.worker.partition("@")[2], self._spec.space.context.hardware.name
        site = Site(host, card, self._engine.version, self._engine.executable or "", parameters_digest())
        return lesson_of(site, point, *found, repeat.metrics)


def is_teachable(record: TrialRecord) -> bool:
    """Return whether a trial tells about its host: every request succeeded, and the warm-up had settled."""
    outcome = record.outcome
    if outcome is None or not outcome.succeeded or outcome.provenance is not Provenance.MEASURED:
        return False
    settled = outcome.server is None or outcome.server.warmup_settled is not False
    return settled and record.kind is not TrialKind.CAPACITY and not outcome.repeats[0].failed
