"""Plays one search on a virtual clock: the sampler suggests, the problem answers, and workers run side by side."""

import heapq
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import optuna
from optuna.trial import Trial, TrialState

from benchmarks.search.play.records import PlayedTrial, SearchRecord
from benchmarks.search.play.reporting import Reporter, make_study
from benchmarks.search.problems.problem import Outcome, Problem, config_key, crashed_outcome
from benchmarks.search.samplers.compared import ComparedSampler
from benchmarks.search.samplers.planned import PlannedSampler
from benchmarks.search.samplers.recipes import RecipeTrials
from records.trials import Config

REDRAWS = 30
"""Suggestions in a row that may break a rule or be measured already; the next one is measured in any case."""
LEAST_TRIAL_SECONDS = 1.0
MOST_LEADERS = 5
"""Length of the ranking that a sampler returns."""
NOISE_SEEDS_PER_SEARCH = 10_007
"""Distance of the noise seeds of two searches with consecutive seeds."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


def play(problem: Problem, sampler: ComparedSampler, trials: int, seed: int, workers: int = 1) -> SearchRecord:
    """Return the record of one search; its first trial is the defaults for every sampler.

    Args:
        problem: the problem.
        sampler: the sampler.
        trials: the budget.
        seed: of the sampler and of the noise.
        workers: number of trials that run side by side.
    """
    search = VirtualSearch(problem, sampler, seed, trials)
    while len(search.ended) < trials:
        while len(search.running) < workers and search.begun < trials and not search.exhausted:
            search.begin()
        if not search.running:
            break
        search.finish()
    ended = tuple(search.ended)
    return SearchRecord(problem.name, sampler.name, seed, workers, trials, ended, search.redrawn, search.exhausted)


def noise_seed(seed: int, number: int) -> int:
    """Return the seed of the noise of one measurement in a search."""
    return seed * NOISE_SEEDS_PER_SEARCH + number


@dataclass(order=True)
class _RunningTrial:
    """A running trial; trials are ordered by their end, then by their begin."""

    ends_at: float
    number: int
    begun_at: float = field(compare=False)
    trial: Trial = field(compare=False)
    config: Config = field(compare=False)
    outcome: Outcome = field(compare=False)
    ask_s: float = field(compare=False)


class VirtualSearch:
    """The state of one search.

    Attributes:
        study: the Optuna study of the sampler.
        running: the running trials, a heap ordered by their end.
        ended: the trials that ended, in that order.
        begun: number of trials that began.
        redrawn: suggestions that were not measured.
        exhausted: whether no configuration is left.
    """

    def __init__(self, problem: Problem, sampler: ComparedSampler, seed: int, trials: int) -> None:
        self._problem = problem
        self._sampler = sampler
        self._seed = seed
        self.study = make_study(problem, sampler, seed)
        self._reporter = Reporter(self.study, sampler, problem.constraint_names)
        self._recipes = None if sampler.recipes is None else RecipeTrials(problem, trials, sampler.recipes == "alone")
        self._now = 0.0
        self._compiled: set[Hashable] = set()
        self._measured: dict[str, Config] = {}
        self.running: list[_RunningTrial] = []
        self.ended: list[PlayedTrial] = []
        self._ended_numbers: list[int] = []
        self.begun = 0
        self.redrawn = 0
        self.exhausted = False

    def begin(self) -> None:
        """Get a configuration and start its trial."""
        begun = time.perf_counter()
        suggested = self._given() or (None if self._sampler.recipes == "alone" else self._suggested_trial())
        ask_s = time.perf_counter() - begun
        if suggested is None:
            self.exhausted = True
            return
        trial, config = suggested
        outcome = self._problem.measure(config, noise_seed(self._seed, self.begun))
        seconds = max(LEAST_TRIAL_SECONDS, outcome.seconds)
        seconds += sum(added for key, added in outcome.compiles if key not in self._compiled)
        self._compiled |= {key for key, _ in outcome.compiles}
        ends_at = self._now + seconds
        running = _RunningTrial(ends_at, self.begun, self._now, trial, config, outcome, ask_s)
        heapq.heappush(self.running, running)
        self._measured[config_key(config)] = config
        self.begun += 1

    def _given(self) -> tuple[Trial, Config] | None:
        """Return a running trial of the defaults or of the next recipe that is new; None once there is none left."""
        if self.begun == 0:
            return self._given_trial(*self._problem.defaults())
        while self._recipes is not None and (config := self._recipes.next(self.ended)) is not None:
            if config_key(config) not in self._measured:
                return self._given_trial(config, self._problem.defaults_beside(config))
        return None

    def _given_trial(self, config: Config, hints: Config) -> tuple[Trial, Config]:
        """Return a running trial that the sampler had no part in.

        The storage is written directly: `Study.ask` would run the sampler and change its random state.
        """
        known = {**hints, **config}
        scratch = optuna.create_study()
        scratch.enqueue_trial(dict(known))
        trial = scratch.ask()
        self._problem.define_fixed(trial, known)
        running = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={"config": config_key(config)},
        )
        storage = self.study._storage
        trial_id = storage.create_new_trial(self.study._study_id, template_trial=running)
        same_study = optuna.load_study(
            study_name=self.study.study_name, storage=storage, sampler=optuna.samplers.RandomSampler(seed=0)
        )
        return Trial(same_study, trial_id), config

    def _suggested_trial(self) -> tuple[Trial, Config] | None:
        """Return the next suggestion that is new and breaks no rule; None if no configuration is left."""
        sampler = self.study.sampler
        for redraws in range(REDRAWS + 1):
            trial = self.study.ask()
            if isinstance(sampler, PlannedSampler) and sampler.finished:
                self.study.tell(trial, state=TrialState.FAIL)
                return None
            suggested = self._problem.define(trial)
            config = self._problem.snap(suggested, self._measured)
            last = redraws == REDRAWS
            if config is None:
                self.study.tell(trial, state=TrialState.FAIL)
                return None
            if not last and not self._problem.allowed(config):
                self._reporter.report(trial, crashed_outcome())
            elif not last and config_key(config) in self._measured:
                self.study.tell(trial, state=TrialState.FAIL)
            else:
                trial.set_user_attr("config", config_key(config))
                if config != suggested:
                    self._replace_params(trial, config)
                return trial, config
            self.redrawn += 1
        return None

    def _replace_params(self, trial: Trial, config: Config) -> None:
        """Replace the suggested parameters of a trial by the measured ones; Optuna has no public call for it."""
        storage = self.study._storage
        for name, distribution in trial.distributions.items():
            if name in config:
                value = distribution.to_internal_repr(config[name])
                storage.set_trial_param(trial._trial_id, name, value, distribution)

    def finish(self) -> None:
        """Advance the clock to the end of the next trial and report its outcome."""
        ended = heapq.heappop(self.running)
        self._now = ended.ends_at
        begun = time.perf_counter()
        self._reporter.report(ended.trial, ended.outcome)
        tell_s = time.perf_counter() - begun
        self._ended_numbers.append(ended.trial.number)
        self.ended.append(
            PlayedTrial(
                config=ended.config,
                outcome=ended.outcome,
                true_score=self._problem.true_score(ended.config),
                ask_s=ended.ask_s,
                tell_s=tell_s,
                begun_at=ended.begun_at,
                ended_at=ended.ends_at,
                leaders=self._leaders(),
            )
        )

    def _leaders(self) -> tuple[int, ...] | None:
        if self._sampler.ranking is None:
            return None
        return tuple(self._ended_numbers.index(number) for number in self._sampler.ranking(self.study)[:MOST_LEADERS])
