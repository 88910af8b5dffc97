"""The study loop: submit trials, store and report their outcomes, retry failures of the infrastructure.

An outcome is written to the database before it is reported to Optuna or displayed. A tuner that is killed in between
loses no outcome.
"""

from __future__ import annotations

import math
import re
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from records.measured import REFERENCES, reference_of
from records.trials import (
    DEFAULTS,
    Culprit,
    Failure,
    FailureKind,
    Phase,
    Provenance,
    ServerFacts,
    TrialKind,
    TrialOutcome,
    TrialRecord,
)
from storage.errors import StorageError, StorageUnavailable
from storage.store import Store
from tuner.cancellation import Wishes
from tuner.clock import Clock
from tuner.executors.base import Executor, Finished
from tuner.scoring.goals import FAILED, distance_of
from tuner.scoring.sequential import looks, most_measurements
from tuner.specs import CutRule, TrialSpec
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import RunEnding, StudyObserver, TrialSource, WorkItem
from tuner.study.specification.spec import Budget, StudySpec
from tuner.study.study_folder import KeptOutcomes

TICK_S = 0.5
_FIRST_FAILURES = 3
"""The study stops if its first trials, this many or more, all failed for the same reason."""

CANCEL_S = 180.0
"""Seconds that cancelled trials have to end: a server needs time after SIGTERM, and after SIGKILL."""

_OVERTIME = 1.0
"""Most time that running trials may continue after the time limit, as a multiple of the median trial's duration."""

_MOST_WAITING = 2
"""Trials that wait for more GPUs than are idle: the second one shows that the sampler has no smaller one now."""

CUT_BELOW = 0.9
"""A trial that scores less than this share of the best one is cut short: with the noise of both, it is worse. So is one
that misses its SLOs by more than the inverse times what the nearest one does, while none meets them."""

_GIVEN_UP_IN_A_ROW = 3
"""The study stops after this many trials in a row that infrastructure failed in every attempt."""

_LASTING = (FailureKind.ENVIRONMENT_BROKEN, FailureKind.DISK_FULL)
"""Failures that another attempt does not avoid if it fails for the same reason."""


class Loop:
    """Runs the trials of a source on an executor."""

    def __init__(
        self,
        spec: StudySpec,
        budget: Budget,
        store: Store,
        optuna_study: OptunaStudy,
        executor: Executor,
        observer: StudyObserver,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._spec = spec
        self._budget = budget
        self._store = store
        self._optuna_study = optuna_study
        self._executor = executor
        self._observer = observer
        self._stop = stop
        self._clock = clock
        self._items: dict[str, WorkItem] = {}
        self._references: dict[bool, Mapping[str, float | None]] = {}
        self._waiting: list[WorkItem] = []
        self._overtaken = False
        self._given_up = 0
        self._broken: dict[tuple[FailureKind, str], list[tuple[TrialKind, str]]] = {}
        self._untuned: set[str] = set()
        study = store.study(spec.name)
        self._kept = KeptOutcomes(spec.artifacts, "" if study is None else study.created_at.isoformat())
        self._one_worked = any(each.succeeded for each in store.trials(spec.name, finished=True))
        self.reason: Failure | None = None
        self.trial_seconds: list[float] = []
        self.benchmark_seconds: list[float] = []
        """Real seconds of the benchmarks of each successful trial of this run; `trial_seconds`: of the whole trial.

        Both are as if it had sent the requests of a trial of the search.
        """

    def restore(self) -> None:
        """Store the outcomes that a killed run has kept on disk; their trials do not run again."""
        for kept in self._kept.read():
            record = self._store.trial(self._spec.name, kept.number, kept.round)
            if record is None or record.outcome is not None:
                continue
            self._observer.note(f"{record.name}: its outcome was not stored by the last run and is stored now")
            item = WorkItem(record.number, record.round, record.kind, record.config, record.label, known=True)
            try:
                self._finish(item, kept.outcome)
            except StorageUnavailable:
                raise
            except StorageError as error:
                self._observer.note(f"{record.name} runs again: {error}")

    def run(self, source: TrialSource, time_is_up: Callable[[], bool]) -> RunEnding:
        """Run until the source is exhausted or something ends the run.

        Once `time_is_up` returns True, no trial starts and running ones may end.
        """
        ending = self._defaults_failed() or RunEnding.DONE
        cancel_at, was_cut = math.inf, False
        self._waiting, self._overtaken = [], False
        while True:
            now = self._clock.monotonic()
            if self._stop.is_set():
                ending, cancel_at = RunEnding.INTERRUPTED, min(cancel_at, now)
            elif ending is RunEnding.DONE and time_is_up():
                ending, cancel_at = RunEnding.TIMEOUT, now + self._overtime_s()
            if now >= cancel_at:
                was_cut = was_cut or bool(self._items)
                self._executor.cancel()
            if now >= cancel_at + CANCEL_S:
                self._abandon()
            if ending is RunEnding.DONE:
                self._submit_trials(source)
            if self._has_ended(ending, source):
                if ending is RunEnding.TIMEOUT and not (was_cut or self._waiting) and source.exhausted():
                    return RunEnding.DONE  # the last trials ended in overtime
                return ending if ending is not RunEnding.DONE or source.exhausted() else RunEnding.EXHAUSTED
            for finished in self._executor.wait_any(TICK_S):
                stop_reason = self._handle(finished, source)
                if ending in (RunEnding.DONE, RunEnding.TIMEOUT) and stop_reason is not None:
                    ending = stop_reason
                if ending is RunEnding.DEFAULTS_FAILED and self._one_worked:
                    ending = RunEnding.DONE  # a trial that ran beside the defaults
            self._observer.tick(self._executor.states())

    def _has_ended(self, ending: RunEnding, source: TrialSource) -> bool:
        """Return whether no trial runs and none can start; a worker that is starting may take one.

        A stop during the last proposal is no end: the next turn ends the run as interrupted.
        """
        if self._items or (ending is RunEnding.DONE and (self._waiting or self._stop.is_set())):
            return False
        return ending is not RunEnding.DONE or source.exhausted() or not self._executor.starting()

    def _abandon(self) -> None:
        """Stop waiting for cancelled trials: their workers do not answer. The next run repeats them."""
        if self._items:
            trials = ", ".join(f"#{uid}" for uid in self._items)
            self._observer.note(
                f"{trials} did not end {CANCEL_S:.0f} s after the cancellation; the next run repeats it"
            )
        self._items.clear()

    def _overtime_s(self) -> float:
        """Return for how many seconds trials may continue after the time limit; the next run repeats cancelled ones."""
        seconds = self.trial_seconds
        return _OVERTIME * statistics.median(seconds) if seconds else self._spec.limits.startup_s

    def _submit_trials(self, source: TrialSource) -> None:
        """Submit a trial of the source to each idle slot."""
        for slot in self._executor.idle():
            item = self._next(source, slot)
            if item is None:
                continue
            if self._stop.is_set():
                return  # the proposal may lack predictions because of the stop; the next run proposes anew
            self._add(item)
            attempt = self._store.begin_attempt(self._spec.name, item.number, item.round)
            trial = self._spec.trial(item.number, item.round, attempt, item.kind, item.config)
            trial = replace(trial, cut=self._cut_rule(item, trial))
            item.began_s = self._clock.monotonic()
            self._items[trial.uid] = item
            self._executor.submit(trial, slot)
            self._observer.started(trial, slot)

    def _cut_rule(self, item: WorkItem, trial: TrialSpec) -> CutRule | None:
        """Return when a trial is cut short; None for one that is measured whole.

        Trials of the search alone are cut. While none meets every SLO, the nearest to them is searched. What the median
        of several repeats will be does not follow from the first.
        """
        if not self._spec.search.cut_short or item.round or item.kind not in (TrialKind.SEARCH, TrialKind.RECIPE):
            return None
        reference = self._cached_reference(of_rounds=False)
        if reference is None or trial.repeats > 1 or trial.capacity_slos is not None:
            return None
        records = [each for each in self._store.trials(self._spec.name, finished=True) if not each.round]
        goals, measured = self._spec.goals, [each for each in records if each.succeeded]
        verdicts = [each.verdict for each in measured if each.verdict and FAILED not in each.verdict.constraints]
        scores = [each.score for each in verdicts if each.feasible and each.score]
        if scores:
            return CutRule(goals.slos, goals.scored, reference, CUT_BELOW * max(scores))
        nearest = min((distance_of(each.constraints.values()) for each in verdicts), default=math.inf)
        return CutRule(goals.slos, goals.scored, reference, None, nearest - math.log(CUT_BELOW))

    def _next(self, source: TrialSource, slot: int) -> WorkItem | None:
        """Return a trial that fits into the GPUs that are idle from a slot on; None if there is none now.

        A trial that needs more GPUs waits, and one smaller trial may overtake it. Then no other trial starts before it,
        so that the GPUs become idle at nearly the same time, and no large trial waits for ever.
        """
        if self._spec.gpus == 1:
            return source.next(slot)
        if slot not in self._executor.idle():  # a trial that has just started uses its GPU
            return None
        for item in self._waiting:
            if self._fits(item, slot):
                self._waiting.remove(item)
                self._overtaken = False
                return item
        while len(self._waiting) < _MOST_WAITING and not self._overtaken:
            found = source.next(slot)
            if found is None or self._fits(found, slot):
                self._overtaken = found is not None and bool(self._waiting)
                return found
            self._add(found)
            self._waiting.append(found)
        return None

    def _fits(self, item: WorkItem, slot: int) -> bool:
        launch = self._spec.trial(item.number, item.round, 1, item.kind, item.config).launch
        return self._executor.fits(slot, launch.gpus(self._spec.gpus))

    def _add(self, item: WorkItem) -> None:
        """Store a trial; the next run runs it, should this one end before."""
        if not item.known:
            self._store.add_trial(self._pending(item))
            item.known = True

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

    def _handle(self, finished: Finished, source: TrialSource) -> RunEnding | None:
        """Store and report an outcome, or return its trial to the source; return why the run must end, else None."""
        item = self._items.pop(finished.spec.uid, None)
        if item is None:  # an abandoned trial of an earlier stage
            return None
        outcome = finished.outcome
        failure = outcome.failure
        if failure is not None and failure.kind is FailureKind.CANCELLED:
            return None
        if failure is not None and failure.culprit is Culprit.INFRASTRUCTURE:
            lasts = self._lasts(item, failure, outcome.worker)
            if lasts or item.retries + 1 < self._budget.attempts:
                item.retries += 1
                self._store.record_failed_attempt(
                    self._spec.name, item.number, item.round, finished.spec.attempt, outcome
                )
                if lasts:  # the next run repeats the trial
                    self.reason = failure
                    return RunEnding.INFRASTRUCTURE
                self._observer.retried(finished.spec, failure)
                source.give_back(item)
                return None
            outcome = _outcome_of_last_attempt(outcome, failure, self._budget.attempts)
        if failure is None and outcome.cut is None:
            self._count_seconds(item, outcome, self._clock.monotonic() - item.began_s)
        return self._finish(item, outcome)

    def _lasts(self, item: WorkItem, failure: Failure, worker: str) -> bool:
        """Return whether no other configuration avoids a failure: the defaults and a second attempt had it, on two
        workers if there are two, and nothing worked. Another engine may avoid what the defaults of one had.
        """
        if self._one_worked or self._spec.engines or failure.kind not in _LASTING:
            return False
        seen = self._broken.setdefault(_reason(failure), [])
        seen.append((item.kind, worker))
        workers = {name for _, name in seen}
        has_defaults = any(kind is TrialKind.BASELINE for kind, _ in seen)
        return has_defaults and len(seen) > 1 and len(workers) >= min(2, len(self._executor.states()))

    def _count_seconds(self, item: WorkItem, outcome: TrialOutcome, seconds: float) -> None:
        """Note the real seconds of a trial; a simulated one spends them all on its benchmarks."""
        simulated = outcome.provenance is Provenance.SIMULATED
        spent = seconds if simulated else min(outcome.timings.get(Phase.BENCHMARK, 0.0), seconds)
        benchmarks = spent / self._spec.cost_of(item.kind)
        self.trial_seconds.append(seconds - spent + benchmarks)
        self.benchmark_seconds.append(benchmarks)

    def _finish(self, item: WorkItem, outcome: TrialOutcome) -> RunEnding | None:
        """Store an outcome with its verdict and report it; return why the run must end, else None."""
        self._kept.keep(item.number, item.round, outcome)
        verdict = self._spec.goals.verdict(outcome, self._reference(item, outcome))
        if item.kind is TrialKind.CAPACITY:  # its metrics are of another rate
            verdict = None
        self._store.finish_trial(self._spec.name, item.number, item.round, outcome, verdict)
        self._kept.remove(item.number, item.round)
        if item.round == 0:
            self._optuna_study.tell(item.number, verdict, outcome.failure, self._spec.goals.gain_at_most(outcome))
        if item.kind in REFERENCES or (outcome.succeeded and verdict is not None and verdict.score is None):
            self._rescore()
        record = self._store.trial(self._spec.name, item.number, item.round)
        assert record is not None
        self._observer.finished(record)
        for note in (warm_up_note(record.name, outcome.server), self._untuned_note(record.name, outcome.server)):
            if note is not None:
                self._observer.note(note)
        return self._must_end(outcome)

    def _untuned_note(self, name: str, server: ServerFacts | None) -> str | None:
        """Return what the study says, once for each file, of kernels without tuned settings; None without new ones."""
        named = None if server is None else server.untuned_kernels
        new = [file for file in (named or "").split("; ") if file and file not in self._untuned]
        self._untuned.update(new)
        return untuned_note(name, new) if new else None

    def _reference(self, item: WorkItem, outcome: TrialOutcome) -> Mapping[str, float | None] | None:
        """Return the metrics that score 1 for this trial; None before the defaults are measured."""
        is_reference = TrialKind.BASELINE if self._spec.baseline is None else TrialKind.CURRENT
        if item.kind is is_reference:
            return self._spec.goals.metrics(outcome) if outcome.succeeded else None
        return self._cached_reference(self._has_own_workload(item.round))

    def _has_own_workload(self, round_: int) -> bool:
        """Return whether the measurements of a round had another workload than those of the search."""
        return round_ > 0 and self._spec.search_prompts is not None

    def _cached_reference(self, of_rounds: bool) -> Mapping[str, float | None] | None:
        """Return `_find_reference` from a cache: a found reference never changes, and finding it reads all trials."""
        if of_rounds not in self._references:
            found = self._find_reference(of_rounds)
            if found is None:
                return None
            self._references[of_rounds] = found
        return self._references[of_rounds]

    def _find_reference(self, of_rounds: bool) -> Mapping[str, float | None] | None:
        """Return the metrics of the reference, or of the first successful trial if there is none.

        The reference is the user's baseline, or the defaults where it is not given or failed.
        """
        every = self._store.trials(self._spec.name, finished=True)
        if self._spec.baseline is not None and not any(r.kind is TrialKind.CURRENT for r in every):
            return None
        reference = reference_of(every)
        finished = [r for r in every if (r.round > 0) == of_rounds]
        baseline = [r for r in finished if reference is not None and r.number == reference.number]
        has_begun = bool(baseline) or any(r.kind in REFERENCES for r in finished)
        if not has_begun and self._spec.confirmation.baseline_repeats:
            return None
        ranked = [*_in_order(baseline), *_in_order([] if of_rounds else finished)]
        return self._spec.goals.metrics(ranked[0]) if ranked else None

    def _rescore(self) -> None:
        """Score the trials that ended before their reference was measured."""
        verdicts = {}
        references = {own: self._cached_reference(own) for own in {False, self._has_own_workload(1)}}
        for record in self._store.trials(self._spec.name, finished=True):
            if record.outcome is not None and record.succeeded and record.verdict is not None and record.score is None:
                reference = references[self._has_own_workload(record.round)]
                verdict = None if reference is None else self._spec.goals.verdict(record.outcome, reference)
                if verdict is not None:
                    verdicts[(record.number, record.round)] = verdict
        if verdicts:
            self._store.set_verdicts(self._spec.name, verdicts)

    def _must_end(self, outcome: TrialOutcome) -> RunEnding | None:
        """Return why the run must end after this outcome; None if it can continue."""
        failure = outcome.failure
        if failure is None:
            self._given_up = 0
            self._one_worked = True
            return None
        if failure.culprit is not Culprit.CONFIGURATION:
            self._given_up += 1
            self.reason = failure
            return RunEnding.INFRASTRUCTURE if self._given_up >= _GIVEN_UP_IN_A_ROW else None
        if self._one_worked:
            return None
        done = self._store.trials(self._spec.name, finished=True)
        failures = [each.failure for each in done if each.failure is not None]
        reasons = {_reason(each) for each in failures}
        if len(done) >= _FIRST_FAILURES and len(reasons) == 1:
            self.reason = failure
            return RunEnding.SAME_FAILURE
        return self._defaults_failed()

    def _defaults_failed(self) -> RunEnding | None:
        """Return that the run must end if the defaults and every given configuration failed, and nothing worked.

        A search would then have no configuration that is known to start. A failure of the infrastructure does not
        count.
        """
        if self._one_worked:
            return None
        given = [*self._spec.enqueue, *filter(None, [self._spec.baseline])]
        unknown = {DEFAULTS, *(each.label for each in given)}
        for record in self._store.trials(self._spec.name, finished=True):
            failure = None if record.round else record.failure
            if failure is None or failure.culprit is not Culprit.CONFIGURATION:
                continue
            unknown.discard(record.label or "")
            self.reason = failure if record.kind is TrialKind.BASELINE else self.reason
        return None if unknown else RunEnding.DEFAULTS_FAILED


def _reason(failure: Failure) -> tuple[FailureKind, str]:
    """Return what equal failures share: without digits, messages that differ in a port or a size are equal."""
    return failure.kind, re.sub(r"\d", "", failure.message)


def warm_up_note(name: str, server: ServerFacts | None) -> str | None:
    """Return what a study says of the warm-up of a trial; None where it settled and every benchmark counts."""
    if server is None or server.warmup_windows is None:
        return None
    if not server.warmup_settled:
        windows = server.warmup_windows
        return f"{name}: the warm-up was not settled after {windows} windows; its values may be worse than the server's"
    if server.benchmarks_again:
        return f"{name}: kernels were compiled during a benchmark, which was measured again"
    return None


def untuned_note(name: str, files: Sequence[str]) -> str:
    """Return what a study says of kernels without tuned settings; `files` with them are missing."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return (
        f"{name}: the engine has no tuned settings of its kernels for this card and model, and uses default ones "
        f"({files[0]}{more}); `tuner study kernels` makes those of experts"
    )


def _in_order(records: Sequence[TrialRecord]) -> list[TrialOutcome]:
    """Return the successful outcomes in the order of their ends."""
    successful = [record.outcome for record in records if record.outcome is not None and record.succeeded]
    return sorted(successful, key=lambda outcome: outcome.ended_at)


def _outcome_of_last_attempt(outcome: TrialOutcome, failure: Failure, attempts: int) -> TrialOutcome:
    """Return the outcome of a trial whose last attempt failed by infrastructure.

    If the server was killed from outside in every attempt, the failure becomes the configuration's: most likely the
    host ran out of memory, and the sampler would propose similar configurations again.
    """
    if failure.kind is not FailureKind.SERVER_KILLED:
        return outcome
    message = f"killed in each of {attempts} attempts (out of host memory?): {failure.message}"
    phase = failure.phase if isinstance(failure.phase, Phase) else Phase.BENCHMARK
    crash = Failure(FailureKind.ENGINE_CRASH, phase, message, failure.evidence, failure.exit_code)
    return replace(outcome, failure=crash)


_LARGEST_RESERVE = 0.5
"""The largest share of the limit that is reserved: one slow trial must not end the search."""

_NOTED_CHANGE = 1.5
"""A reserve is noted again when it has changed by this factor, either way."""


@dataclass
class TimeLimit:
    """The time limit of a run, less the reserve for the confirmation.

    `timeout_s` counts from `began` by the clock of the run; None: no limit. As many rounds as `slots` run at the same
    time.
    """

    spec: StudySpec
    timeout_s: float | None
    loop: Loop
    slots: int
    clock: Clock
    began: float
    observer: StudyObserver
    wishes: Wishes
    _noted_s: float = field(default=0.0, init=False)

    def ends_search(self) -> bool:
        """Return whether the confirmation has to begin now."""
        if self.wishes.ends_search():
            return True
        if self.timeout_s is None:
            return False
        loop = self.loop
        longest = longest_confirmation_s(self.spec, loop.trial_seconds, loop.benchmark_seconds, self.slots)
        reserve = min(longest or statistics.median(loop.trial_seconds or [0.0]), _LARGEST_RESERVE * self.timeout_s)
        if longest > 0 and not self._noted_s / _NOTED_CHANGE < reserve < self._noted_s * _NOTED_CHANGE:
            self._noted_s = reserve
            self.observer.note(_reserve_note(self.timeout_s, reserve, longest))
        return self._elapsed_s() + reserve >= self.timeout_s

    def is_over(self, needed_s: float = 0.0) -> bool:
        """Return whether the whole limit has passed, or less than some seconds of it are left."""
        is_late = self.timeout_s is not None and self._elapsed_s() + needed_s >= self.timeout_s
        return self.wishes.ends_search() or is_late

    def has_no_room(self) -> bool:
        """Return whether a measurement of a round would end after the limit."""
        return self.is_over(self._measurement_s)

    def room(self) -> int | None:
        """Return how many measurements of rounds end before the limit; None if there is none, or no trial tells it."""
        if self.timeout_s is None or not self._measurement_s:
            return None
        side_by_side = min(self.slots, looks(self.spec.confirmation.confirm_rounds)[0])
        return max(0, int((self.timeout_s - self._elapsed_s()) / self._measurement_s)) * side_by_side

    @property
    def _measurement_s(self) -> float:
        return measurement_s(self.spec, self.loop.trial_seconds, self.loop.benchmark_seconds)

    def _elapsed_s(self) -> float:
        return self.clock.monotonic() - self.began


def _reserve_note(timeout_s: float, reserve_s: float, longest_s: float) -> str:
    """Return the reserve, and how it comes about if it is the largest one."""
    text = (
        f"time limit {_duration(timeout_s)}: the search ends {_duration(reserve_s)} before it, "
        "which are reserved for the confirmation"
    )
    if reserve_s < longest_s:
        text += f"; it may take {_duration(longest_s)}, and half of the limit is the most that is reserved"
    return text


def _duration(seconds: float) -> str:
    """Return `40 s`, `35 min` or `4.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def longest_confirmation_s(
    spec: StudySpec, trial_seconds: Sequence[float], benchmark_seconds: Sequence[float], slots: int
) -> float:
    """Return the seconds that the confirmation may take, from the seconds of each trial so far and of its benchmarks.

    Rounds run side by side on `slots` workers. Fixed rounds measure the finalists and the reference.
    The test with smaller forms (`scoring.sequential`) may take as many measurements as half of the search; before each
    look, one counts as the trial of a new form, and the others as rounds of as many configurations.
    """
    confirmation, rounds = spec.confirmation, spec.confirmation.confirm_rounds
    if not trial_seconds or not rounds:
        return 0.0
    measurement = measurement_s(spec, trial_seconds, benchmark_seconds)
    group = confirmation.finalists + 1
    if not confirmation.reduce:
        return measurement * group * -(-rounds // slots)
    ends, most = looks(rounds), most_measurements(len(trial_seconds), rounds, confirmation.finalists)
    in_rounds = min(most - len(ends), group * ends[-1])
    return statistics.median(trial_seconds) * len(ends) + measurement * in_rounds / min(slots, ends[0])


def measurement_s(spec: StudySpec, trial_seconds: Sequence[float], benchmark_seconds: Sequence[float]) -> float:
    """Return the seconds of one measurement of a round, from those of trials of the search and of their benchmarks.

    They are the median time of a trial outside its benchmarks plus the median time of its benchmarks times
    `spec.round_cost`; 0 without trials.
    """
    if not trial_seconds:
        return 0.0
    overhead = statistics.median(t - b for t, b in zip(trial_seconds, benchmark_seconds, strict=True))
    return overhead + statistics.median(benchmark_seconds) * spec.round_cost
