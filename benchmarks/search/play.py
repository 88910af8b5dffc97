"""One search: a rival asks, a problem answers, workers run side by side on a virtual clock."""

from __future__ import annotations

import heapq
import json
import math
import time
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import optuna
from optuna.study import Study, StudyDirection
from optuna.trial import Trial, TrialState

from benchmarks.search.problems.problem import Config, Outcome, Problem, crashed, key_of
from benchmarks.search.samplers.catalogue import Rival
from benchmarks.search.samplers.planned import Planned
from tuner.scoring.judge import FAILED, FAILED_VIOLATION

REDRAWS = 30
"""Proposals in a row that may break a rule or be known already; the next one is measured whatever it is."""
LEAST_SECONDS = 1.0
LEADERS = 5
"""How many of the best a rival is asked for."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class Played:
    """One trial: what was measured of it, its score without noise, the seconds that the sampler took, when it ended.

    `leaders` are the places, among the trials ended until then, of those that the rival thinks best; None: it does not
    say, and what was measured best counts. `outlook` is what the rival expected to gain, if it says so.
    """

    config: Config
    outcome: Outcome
    truth: float | None
    ask_s: float
    tell_s: float
    begun_at: float
    ended_at: float
    leaders: tuple[int, ...] | None = None
    outlook: float | None = None


@dataclass(frozen=True)
class Record:
    """One search. `trials` are in the order in which they ended; `exhausted` if nothing was left to measure."""

    problem: str
    rival: str
    seed: int
    workers: int
    budget: int
    trials: tuple[Played, ...]
    redrawn: int
    exhausted: bool


def play(problem: Problem, rival: Rival, trials: int, seed: int, workers: int = 1) -> Record:
    """Let a rival search a problem; the first trial is the defaults, whoever searches.

    Args:
        problem: what is searched.
        rival: who searches.
        trials: the budget.
        seed: of the sampler and of the measurements' noise.
        workers: how many trials run at a time.
    """
    search = Search(problem, rival, seed)
    while len(search.done) < trials:
        while len(search.running) < workers and search.begun < trials and not search.exhausted:
            search.begin()
        if not search.running:
            break
        search.finish()
    return Record(problem.name, rival.name, seed, workers, trials, tuple(search.done), search.redrawn, search.exhausted)


@dataclass(order=True)
class _Running:
    """A trial under way, ordered by its end."""

    ends_at: float
    place: int
    begun_at: float = field(compare=False)
    trial: Trial = field(compare=False)
    config: Config = field(compare=False)
    outcome: Outcome = field(compare=False)
    ask_s: float = field(compare=False)
    outlook: float | None = field(compare=False)


class Search:
    """The state of one search."""

    def __init__(self, problem: Problem, rival: Rival, seed: int) -> None:
        self._problem = problem
        self._rival = rival
        self._seed = seed
        self.study = make_study(problem, rival, seed)
        self._now = 0.0
        self._compiled: set[Hashable] = set()
        self._measured: dict[str, Config] = {}
        self._worst = _Worst(problem)
        self.running: list[_Running] = []
        self.done: list[Played] = []
        self._ended: list[int] = []
        self.begun = 0
        self.redrawn = 0
        self.exhausted = False

    def begin(self) -> None:
        """Ask for a configuration and start it."""
        begun = time.perf_counter()
        if self.begun == 0:
            asked: tuple[Trial, Config] | None = self._begin_defaults()
        else:
            asked = self._ask()
        ask_s = time.perf_counter() - begun
        outlook = getattr(self.study.sampler, "outlook", None) if self.begun else None
        if asked is None:
            self.exhausted = True
            return
        trial, config = asked
        outcome = self._problem.measure(config, self._seed * 10_007 + self.begun)
        seconds = max(LEAST_SECONDS, outcome.seconds)
        seconds += sum(added for key, added in outcome.compiles if key not in self._compiled)
        self._compiled |= {key for key, _ in outcome.compiles}
        running = _Running(self._now + seconds, self.begun, self._now, trial, config, outcome, ask_s, outlook)
        heapq.heappush(self.running, running)
        self._measured[key_of(config)] = config
        self.begun += 1

    def _begin_defaults(self) -> tuple[Trial, Config]:
        """Write the defaults down as running, without asking the sampler."""
        config, hints = self._problem.defaults()
        known = {**hints, **config}
        scratch = optuna.create_study()
        scratch.enqueue_trial(dict(known))
        asked = scratch.ask()
        self._problem.define_fixed(asked, known)
        begun = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=asked.params,
            distributions=asked.distributions,
            user_attrs={"config": json.dumps(dict(config), sort_keys=True)},
        )
        storage = self.study._storage
        trial_id = storage.create_new_trial(self.study._study_id, template_trial=begun)
        plain = optuna.load_study(
            study_name=self.study.study_name, storage=storage, sampler=optuna.samplers.RandomSampler(seed=0)
        )
        return Trial(plain, trial_id), config

    def _ask(self) -> tuple[Trial, Config] | None:
        """Return the next configuration that is new and breaks no rule; None if nothing is left to measure."""
        sampler = self.study.sampler
        for redraws in range(REDRAWS + 1):
            trial = self.study.ask()
            if isinstance(sampler, Planned) and sampler.finished:
                self.study.tell(trial, state=TrialState.FAIL)
                return None
            wanted = self._problem.define(trial)
            config = self._problem.snap(wanted, self._measured)
            last = redraws == REDRAWS
            if config is None:
                self.study.tell(trial, state=TrialState.FAIL)
                return None
            if not last and not self._problem.allowed(config):
                self._tell(trial, crashed())
            elif not last and key_of(config) in self._measured:
                self.study.tell(trial, state=TrialState.FAIL)
            else:
                trial.set_user_attr("config", json.dumps(dict(config), sort_keys=True))
                if config != wanted:
                    self._replace(trial, config)
                return trial, config
            self.redrawn += 1
        return None

    def _replace(self, trial: Trial, config: Config) -> None:
        """Put the parameters of what is measured in the place of those that were asked for."""
        storage = self.study._storage
        for name, distribution in trial.distributions.items():
            if name in config:
                value = distribution.to_internal_repr(config[name])
                storage.set_trial_param(trial._trial_id, name, value, distribution)

    def finish(self) -> None:
        """Let time pass until a trial ends, and tell what came of it."""
        ended = heapq.heappop(self.running)
        self._now = ended.ends_at
        begun = time.perf_counter()
        self._tell(ended.trial, ended.outcome)
        tell_s = time.perf_counter() - begun
        truth = self._problem.truth(ended.config)
        self._ended.append(ended.trial.number)
        times = (ended.ask_s, tell_s, ended.begun_at, ended.ends_at)
        self.done.append(Played(ended.config, ended.outcome, truth, *times, self._leaders(), ended.outlook))

    def _leaders(self) -> tuple[int, ...] | None:
        if self._rival.ranks is None:
            return None
        return tuple(self._ended.index(number) for number in self._rival.ranks(self.study)[:LEADERS])

    def _tell(self, trial: Trial, outcome: Outcome) -> None:
        rival = self._rival
        values = outcome.values
        if outcome.score is not None:
            trial.set_user_attr("score", outcome.score)
        if values is None:
            self._tell_crash(trial, outcome)
            return
        constraints = {**outcome.constraints, FAILED: 0.0}
        told = [math.log(max(outcome.score or 0.0, 1e-9))] if rival.told == "score" else list(values)
        self._worst.note(told, constraints)
        if rival.constraints:
            for name, value in constraints.items():
                trial.set_constraint(name, value)
        self.study.tell(trial, told)

    def _tell_crash(self, trial: Trial, outcome: Outcome) -> None:
        """Tell a crash in the rival's way; "worst" is "constraint" while nothing was measured."""
        how = self._rival.tells_crash_as
        if how == "fail":
            self.study.tell(trial, state=TrialState.FAIL)
        elif how == "worst" and self._worst.values is not None:
            for name, value in {**self._worst.constraints, FAILED: FAILED_VIOLATION}.items():
                trial.set_constraint(name, value)
            self.study.tell(trial, self._worst.of(self.study.directions))
        else:
            for name, value in outcome.constraints.items():
                trial.set_constraint(name, value)
            self.study.tell(trial, state=TrialState.PRUNED)


class _Worst:
    """The worst that was measured of each figure: what samplers that read only complete trials are told of a crash."""

    def __init__(self, problem: Problem) -> None:
        self.values: list[tuple[float, float]] | None = None
        self.constraints: dict[str, float] = dict.fromkeys(problem.constraint_names, 0.0)

    def note(self, told: list[float], constraints: Mapping[str, float]) -> None:
        """Take a measured trial into account."""
        before = self.values or [(value, value) for value in told]
        self.values = [(min(low, value), max(high, value)) for (low, high), value in zip(before, told, strict=True)]
        for name, value in constraints.items():
            self.constraints[name] = max(value, self.constraints.get(name, 0.0))

    def of(self, directions: list[StudyDirection]) -> list[float]:
        """Return the worst values."""
        assert self.values is not None
        pairs = zip(self.values, directions, strict=True)
        return [low if direction is StudyDirection.MAXIMIZE else high for (low, high), direction in pairs]


def make_study(problem: Problem, rival: Rival, seed: int) -> Study:
    """Return an empty study in memory with the rival's sampler."""
    if rival.told == "score":
        directions = [StudyDirection.MAXIMIZE]
    else:
        directions = [StudyDirection[objective.direction.name] for objective in problem.objectives]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(directions=directions, sampler=rival.sampler(problem, seed))
