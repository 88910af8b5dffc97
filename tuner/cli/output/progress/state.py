"""The state of a running study at one moment: trials, the best so far, the stage, the time that is left."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from records.measured import REFERENCES, reference_of
from records.trials import Phase, Provenance, TrialRecord
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.protocols import Stage, StagePlan, StudyStart, SyncStatus

LAST_TRIALS = 12


class Progress:
    """Collects a study's events; the views only read it.

    The clock's seconds are real time. In a simulation, trials take other, simulated seconds.
    """

    def __init__(self, start: StudyStart, clock: Callable[[], float] = time.monotonic) -> None:
        self.start = start
        self.spec = start.spec
        self.defaults = start.spec.space.known_defaults()
        self.simulated = start.engine.provenance is Provenance.SIMULATED
        self.plan = StagePlan(Stage.SEARCH, start.budget.trials)
        self.last: deque[TrialRecord] = deque(maxlen=LAST_TRIALS)
        self.failures: Counter[str] = Counter()
        self.simulated_s = 0.0
        self.mlflow: SyncStatus | None = None
        self.workers: Sequence[WorkerState] = ()
        self.round = 0
        self._clock = clock
        self._began = clock()
        self._trials: dict[int, TrialRecord] = {}
        self._measured: set[tuple[int, int]] = set()
        self._pace = _Pace(max(start.workers, 1))
        for record in start.records:
            if record.outcome is not None:
                self._count(record)

    def stage(self, plan: StagePlan) -> None:
        self.plan = plan
        self._pace.begin_stage()

    def started(self, spec: TrialSpec) -> None:
        """Note when a trial starts."""
        self.round = spec.round
        self._pace.start(self._clock())

    def finished(self, record: TrialRecord) -> None:
        """Count a finished trial or a finished measurement of a round."""
        self._count(record)
        self._pace.finish(self._clock())
        self.last.append(self.rescored(record))

    def _count(self, record: TrialRecord) -> None:
        outcome = record.outcome
        assert outcome is not None
        if self.simulated:
            self.simulated_s += sum(outcome.timings.values())
        if outcome.failure is not None:
            self.failures[outcome.failure.kind.value] += 1
        if record.round:
            self._measured.add((record.number, record.round))
            return
        self._trials[record.number] = record
        if record.kind in REFERENCES:
            self._trials = {number: self.rescored(trial) for number, trial in self._trials.items()}
            self.last = deque((self.rescored(trial) for trial in self.last), maxlen=LAST_TRIALS)

    def rescored(self, record: TrialRecord) -> TrialRecord:
        """Return the record with its score; a trial that ended before the defaults did is stored without one."""
        outcome, baseline = record.outcome, self.baseline
        if record.verdict is None or record.score is not None or record.round or outcome is None:
            return record
        if not outcome.succeeded or baseline is None or baseline.outcome is None or not baseline.outcome.succeeded:
            return record
        goals = self.spec.goals
        return replace(record, verdict=goals.verdict(outcome, goals.metrics(baseline.outcome)))

    @property
    def baseline(self) -> TrialRecord | None:
        """The user's baseline or the defaults, once it has finished."""
        return reference_of(list(self._trials.values()))

    @property
    def best(self) -> TrialRecord | None:
        """The feasible trial of the search with the highest score."""
        scored = [trial for trial in self._trials.values() if trial.state == "ok" and trial.score is not None]
        return max(scored, key=lambda trial: trial.score or 0.0, default=None)

    @property
    def done(self) -> int:
        """Finished trials of the study, without the rounds' measurements."""
        return len(self._trials)

    @property
    def stage_done(self) -> int:
        """Finished trials or measurements of the current stage."""
        if self.plan.stage is Stage.CONFIRMATION:
            return sum(round_ in self.plan.rounds for _, round_ in self._measured)
        return self.done if self.plan.stage is Stage.SEARCH else self._pace.done_in_stage

    @property
    def stage_trials(self) -> int:
        """Trials or measurements of the current stage, finished or not."""
        return max(self.plan.trials, self.stage_done)

    def text_of_round(self, round_: int) -> str:
        """Return `round 2 of 3` for a round of the current confirmation, such as `round`, else nothing."""
        rounds = self.plan.rounds
        return f"round {rounds.index(round_) + 1} of {len(rounds)}" if round_ in rounds else ""

    def elapsed_s(self) -> float:
        return self._clock() - self._began

    def remaining_s(self) -> float | None:
        """Return the estimated real seconds until the run is over, its rounds included; None before the first trial."""
        pace = self._pace.seconds_per_trial()
        if pace is None:
            return None
        left = self.stage_trials - self.stage_done
        if self.plan.stage is Stage.CONFIRMATION:
            return left * pace * (1.0 if self._pace.done_in_stage else self._round_factor())
        return (left + self._confirmation_trials() * self._round_factor()) * pace

    def _confirmation_trials(self) -> int:
        confirmation = self.spec.confirmation
        return (confirmation.finalists + 1) * confirmation.confirm_rounds if confirmation.baseline_repeats else 0

    def _round_factor(self) -> float:
        """Return how much longer a measurement of a round takes than a trial of the search.

        Only the benchmark is longer, `round_cost` times. A simulation spends its real time on the benchmark.
        """
        share = 1.0 if self.simulated else _benchmark_share(self._trials)
        return 1.0 - share + share * self.spec.round_cost


class _Pace:
    """Real seconds per trial, from the trials of the current stage, else from those of the stage before."""

    def __init__(self, slots: int) -> None:
        self.done_in_stage = 0
        self._slots = slots
        self._began: float | None = None
        self._ended = 0.0
        self._earlier: float | None = None

    def begin_stage(self) -> None:
        self._earlier = self.seconds_per_trial()
        self.done_in_stage, self._began = 0, None

    def start(self, now: float) -> None:
        if self._began is None:
            self._began = now

    def finish(self, now: float) -> None:
        self.done_in_stage += 1
        self._ended = now

    def seconds_per_trial(self) -> float | None:
        """Return the mean seconds between two ends of trials; None before the first.

        Until every worker has finished a trial, those that still run count as finished.
        """
        if self._began is None or not self.done_in_stage:
            return self._earlier
        return (self._ended - self._began) / max(self.done_in_stage, self._slots)


def _benchmark_share(trials: Mapping[int, TrialRecord]) -> float:
    """Return the share of the trials' seconds that their benchmarks took."""
    timings = [trial.outcome.timings for trial in trials.values() if trial.outcome is not None]
    total = sum(sum(each.values()) for each in timings)
    return sum(each.get(Phase.BENCHMARK, 0.0) for each in timings) / total if total else 0.0
