"""The loop: hand out work, take outcomes, write them down, teach, retry what was not the configuration's fault.

Order matters: an outcome is in the database before Optuna is told and before anyone is shown it, so a tuner that is
killed between two lines loses nothing.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from storage.records import Culprit, Failure, FailureKind, Phase, TrialKind, TrialOutcome, TrialRecord
from storage.store import Store
from tuner.clock import Clock
from tuner.executors.base import Executor, Finished
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import RunEnding, StudyObserver, TrialSource, WorkItem
from tuner.study.settings import Budget
from tuner.study.spec import StudySpec

TICK_S = 0.5
FIRST_FAILURES = 3
"""Trials that must all fail for one same reason, with none before them, for the study to stop and name it."""

OVERTIME = 1.0
"""How long trials may run on when the time is up, in median trials."""

GIVEN_UP_IN_A_ROW = 3
"""Trials in a row that infrastructure took, retries included, for the study to stop."""


class Loop:
    """Runs the items of a source on an executor."""

    def __init__(
        self,
        spec: StudySpec,
        budget: Budget,
        store: Store,
        learner: OptunaStudy,
        executor: Executor,
        listener: StudyObserver,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._spec = spec
        self._budget = budget
        self._store = store
        self._learner = learner
        self._executor = executor
        self._listener = listener
        self._stop = stop
        self._clock = clock
        self._items: dict[str, WorkItem] = {}
        self._bases: dict[bool, Mapping[str, float | None]] = {}
        self._given_up = 0
        self._one_worked = any(r.outcome and r.outcome.succeeded for r in store.trials(spec.name, finished=True))
        self.reason: Failure | None = None
        self.trial_seconds: list[float] = []
        self.benchmark_seconds: list[float] = []
        """Duration of each trial that ran to its end in this run, and of its benchmarks."""

    def run(self, source: TrialSource, time_is_up: Callable[[], bool]) -> RunEnding:
        """Run until the source is exhausted or something ends the run.

        Args:
            source: where the work comes from.
            time_is_up: asked between trials; True lets what runs come to its end and starts nothing more.
        """
        ending, overtime = RunEnding.DONE, 0.0
        while True:
            if self._stop.is_set():
                self._executor.cancel()
                ending = RunEnding.INTERRUPTED
            elif ending is RunEnding.DONE and time_is_up():
                ending, overtime = RunEnding.TIMEOUT, self._clock.monotonic() + self._overtime_s()
            if ending is RunEnding.TIMEOUT and self._clock.monotonic() > overtime:
                self._executor.cancel()
            if ending is RunEnding.DONE:
                self._hand_out(source)
            if not self._items:
                if ending is not RunEnding.DONE or source.exhausted():
                    return ending
                # Every idle slot was offered work, took none, and nothing runs: the source has no more to give.
                return RunEnding.EXHAUSTED
            for finished in self._executor.wait_any(TICK_S):
                verdict_on_run = self._take(finished, source)
                if ending in (RunEnding.DONE, RunEnding.TIMEOUT) and verdict_on_run is not None:
                    ending = verdict_on_run
            self._listener.tick(self._executor.states())

    def _overtime_s(self) -> float:
        """Return how long trials may run on when the time is up; one that is cut off is run again another time."""
        walls = self.trial_seconds
        return OVERTIME * statistics.median(walls) if walls else self._spec.limits.startup_s

    def _hand_out(self, source: TrialSource) -> None:
        for slot in self._executor.idle():
            item = source.next(slot)
            if item is None:
                continue
            if not item.known:
                self._store.add_trial(self._pending(item))
                item.known = True
            attempt = self._store.begin_attempt(self._spec.name, item.number, item.round)
            trial = self._spec.trial(item.number, item.round, attempt, item.kind, item.config)
            self._items[trial.uid] = item
            self._executor.submit(trial, slot)
            self._listener.started(trial, slot)

    def _pending(self, item: WorkItem) -> TrialRecord:
        return TrialRecord(
            study=self._spec.name,
            number=item.number,
            round=item.round,
            kind=item.kind,
            label=item.label,
            params=item.config,
            config=item.config,
            attempts=0,
            created_at=self._clock.now(),
        )

    def _take(self, finished: Finished, source: TrialSource) -> RunEnding | None:
        """Write an outcome down and teach it, or give its item back; return why the run must end, if it must."""
        item = self._items.pop(finished.spec.uid)
        outcome = finished.outcome
        failure = outcome.failure
        if failure is not None and failure.kind is FailureKind.CANCELLED:
            return None
        if failure is not None and failure.culprit is Culprit.INFRASTRUCTURE:
            if item.retries + 1 < self._budget.attempts:
                item.retries += 1
                self._store.record_failed_attempt(
                    self._spec.name, item.number, item.round, finished.spec.attempt, outcome
                )
                self._listener.retried(finished.spec, failure)
                source.give_back(item)
                return None
            outcome = _final(outcome, failure, self._budget.attempts)
        return self._finish(item, outcome)

    def _finish(self, item: WorkItem, outcome: TrialOutcome) -> RunEnding | None:
        verdict = self._spec.goals.verdict(outcome, self._reference(item, outcome))
        self._store.finish_trial(self._spec.name, item.number, item.round, outcome, verdict)
        if item.round == 0:
            self._learner.tell(item.number, verdict)
        if item.kind is TrialKind.BASELINE or (outcome.succeeded and verdict is not None and verdict.score is None):
            self._rescore()
        record = self._store.trial(self._spec.name, item.number, item.round)
        assert record is not None
        self._listener.finished(record)
        return self._must_end(outcome)

    def _reference(self, item: WorkItem, outcome: TrialOutcome) -> Mapping[str, float | None] | None:
        """Return the metrics that score 1; None while that is not known."""
        if item.kind is TrialKind.BASELINE:
            return self._spec.goals.metrics(outcome) if outcome.succeeded else None
        return self._known_reference(self._apart(item.round))

    def _apart(self, round_: int) -> bool:
        """Return whether what was measured in a round was sent another load than the search."""
        return round_ > 0 and self._spec.search_prompts is not None

    def _known_reference(self, decides: bool) -> Mapping[str, float | None] | None:
        """Return `_find_reference()`, which does not change once there is one and reads the whole study."""
        if decides not in self._bases:
            found = self._find_reference(decides)
            if found is None:
                return None
            self._bases[decides] = found
        return self._bases[decides]

    def _find_reference(self, decides: bool) -> Mapping[str, float | None] | None:
        """Return the defaults' metrics; where they failed or are not to be measured, those of the first that worked.

        `decides` asks for those of a round, whose load is another than the search's.
        """
        every = self._store.trials(self._spec.name, finished=True)
        defaults = [r.number for r in every if r.kind is TrialKind.BASELINE]
        finished = [r for r in every if (r.round > 0) == decides]
        baseline = [r for r in finished if r.number in defaults]
        if not baseline and self._spec.confirmation.baseline_repeats:
            return None
        ranked = [*_in_order(baseline), *_in_order([] if decides else finished)]
        return self._spec.goals.metrics(ranked[0]) if ranked else None

    def _rescore(self) -> None:
        """Score the trials that came back before what they are compared with did."""
        verdicts = {}
        references = {apart: self._known_reference(apart) for apart in {False, self._apart(1)}}
        for record in self._store.trials(self._spec.name, finished=True):
            unscored = record.verdict is not None and record.verdict.score is None
            if unscored and record.outcome is not None and record.outcome.succeeded:
                reference = references[self._apart(record.round)]
                verdict = None if reference is None else self._spec.goals.verdict(record.outcome, reference)
                if verdict is not None:
                    verdicts[(record.number, record.round)] = verdict
        if verdicts:
            self._store.set_verdicts(self._spec.name, verdicts)

    def _must_end(self, outcome: TrialOutcome) -> RunEnding | None:
        """Return why the study cannot sensibly go on, if so."""
        failure = outcome.failure
        if failure is None:
            self._given_up = 0
            self._one_worked = True
            self.trial_seconds.append((outcome.ended_at - outcome.started_at).total_seconds())
            self.benchmark_seconds.append(outcome.timings.get(Phase.BENCHMARK, 0.0))
            return None
        if failure.culprit is not Culprit.CONFIGURATION:
            self._given_up += 1
            self.reason = failure
            return RunEnding.INFRASTRUCTURE if self._given_up >= GIVEN_UP_IN_A_ROW else None
        if self._one_worked:
            return None
        done = [r.outcome for r in self._store.trials(self._spec.name, finished=True) if r.outcome is not None]
        reasons = {(o.failure.kind, _gist(o.failure.message)) for o in done if o.failure is not None}
        if len(done) >= FIRST_FAILURES and len(reasons) == 1:
            self.reason = failure
            return RunEnding.SAME_FAILURE
        return None


def _in_order(records: Sequence[TrialRecord]) -> list[TrialOutcome]:
    """Return the outcomes that have figures, the first to end first."""
    worked = [record.outcome for record in records if record.outcome is not None and record.outcome.succeeded]
    return sorted(worked, key=lambda outcome: outcome.ended_at)


def _gist(message: str) -> str:
    """Return a message without its digits, so that two ports or sizes do not make two reasons."""
    return "".join(character for character in message if not character.isdigit())


def _final(outcome: TrialOutcome, failure: Failure, attempts: int) -> TrialOutcome:
    """Return the outcome of a trial that infrastructure took once too often.

    A server killed from outside in every attempt is the configuration's: most likely the host ran out of memory under
    it, and a sampler that is not told walks back there.
    """
    if failure.kind is not FailureKind.SERVER_KILLED:
        return outcome
    message = f"killed in each of {attempts} attempts (out of host memory?): {failure.message}"
    phase = failure.phase if isinstance(failure.phase, Phase) else Phase.BENCHMARK
    crash = Failure(FailureKind.ENGINE_CRASH, phase, message, failure.evidence, failure.exit_code)
    return replace(outcome, failure=crash)
