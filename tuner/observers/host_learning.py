"""What a study learns of the host that it measures on: a lesson of each trial, and the posterior of all lessons.

Measured trials alone have lessons. A study predicts with what the host's lessons told when it was created, and with
those of its own search: a function of its stored trials, so that a resumed study has the predictions of an
uninterrupted one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from operator import attrgetter

from records.lessons import Lesson, Site
from records.trials import Provenance, TrialKind, TrialRecord
from search_spaces import HardwareProfile, SpaceError
from storage.errors import StorageError
from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.learning import HostPosterior, follow, lesson_of, linearised, posterior
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import parameters_digest
from tuner.engines.simulator.precision import ConfigRefused
from tuner.errors import TunerError
from tuner.observers.fan_out import SilentObserver
from tuner.results import text
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
    """Computes the lessons of a study's trials in a thread, stores them, and says what all of them tell."""

    def __init__(
        self, store: Store, spec: StudySpec, engine: EngineInfo, note: Callable[[str], None] = lambda line: None
    ) -> None:
        """Begin with the trials of earlier runs; `note` receives a line each time that the predictions change."""
        self._store, self._spec, self._engine, self._note = store, spec, engine, note
        self._learned, self._next_count = spec.learned, 1
        self._of_search: list[Future[Lesson | None]] = []
        self._every: list[Future[Lesson | None]] = []
        self._pool: ThreadPoolExecutor | None = None
        stored = replace(spec, learned=None)
        self._search = simulator_of(replace(stored, workload=spec.searched_workload), engine)
        self._rounds = simulator_of(stored, engine)
        if engine.provenance is Provenance.MEASURED and self._rounds is not None and not spec.engines:
            self._pool = ThreadPoolExecutor(1, initializer=_lower_priority)
            known = store.lessons_of(spec.name)
            done = [record for record in store.trials(spec.name, finished=True) if record.outcome is not None]
            for record in sorted(done, key=attrgetter("outcome.ended_at")):
                self._add(record, known.get((record.number, record.round)))

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

        Its own count from the first trial on, and again from the second, the fourth, the eighth and so on, because each
        change costs the predictions of a new start. Only then does it wait for their computation.
        """
        before = self._learned
        while self._next_count <= len(self._of_search):
            own = [lesson for each in self._of_search[: self._next_count] if (lesson := each.result()) is not None]
            self._learned = follow(self._spec.learned, self._learned, own)
            self._next_count *= 2
        if self._learned is not None and self._learned is not before:
            shown = self._learned.to_dict()
            self._store.update_study(self._spec.name, facts={"learned": shown})
            self._note(f"predictions are corrected by {text.learned(shown)}")
        return self._learned

    def close(self) -> None:
        """Wait for the lessons of queued trials; the next run computes those that a minute is too short for."""
        if self._pool is not None:
            wait(self._every, _PATIENCE_S)
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _compute(self, record: TrialRecord) -> Lesson | None:
        """Store the lesson of a trial and return it; None if it has none."""
        try:
            lesson = self.lesson(record)
            if lesson is not None:
                self._store.add_lesson(record.study, record.number, record.round, lesson)
        except (TunerError, SpaceError, ConfigRefused, StartFailed, StorageError) as error:
            _log.info("nothing is learned from trial %s: %s", record.name, error)
            return None
        except (ArithmeticError, LookupError, ValueError) as error:  # as in `SimulatorPrior.guard`
            _log.warning("nothing is learned from trial %s, the simulator failed: %s", record.name, error)
            return None
        return lesson

    def lesson(self, record: TrialRecord) -> Lesson | None:
        """Return the lesson of a trial; None if no metric of it is predicted. Errors are those of `server_with`."""
        outcome, shape = record.outcome, self._spec.space.context.model
        simulator = self._rounds if record.kind is TrialKind.CONFIRM else self._search
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


def _lower_priority() -> None:
    """Give this thread the lowest priority."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def is_teachable(record: TrialRecord) -> bool:
    """Return whether a trial tells about its host: every request succeeded, and the warm-up had settled."""
    outcome = record.outcome
    if outcome is None or not outcome.succeeded or outcome.provenance is not Provenance.MEASURED:
        return False
    settled = outcome.server is None or outcome.server.warmup_settled is not False
    return settled and record.kind is not TrialKind.CAPACITY and not outcome.repeats[0].failed
