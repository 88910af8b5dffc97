"""Problems of the simulated engine: predictions come from the stored parameters, measurements from perturbed ones."""

import zlib
from dataclasses import replace
from functools import cached_property

from benchmarks.search.problems.best_known import find_best
from benchmarks.search.problems.problem import (
    MetricsByName,
    Outcome,
    Problem,
    config_key,
    crashed_outcome,
    seeded_generator,
)
from benchmarks.search.problems.simulated.study import SimulatedStudy, SimulatedTrial
from benchmarks.search.problems.simulated.world import World, sped_up
from benchmarks.search.problems.trials import RandomTrial
from records.trials import Config
from search_spaces import ParameterValue, Trial
from tuner.engines.simulator.parameters import parameters_of
from tuner.scoring.goals import FAILED, FAILED_VIOLATION, score

SHORT_NOISE = 1.2
"""Noise of a shortened benchmark relative to a whole one: assumed, as most noise lies between launches."""


class SimulatedProblem(Problem):
    """One simulated study. If its defaults crash, the reference is the first random configuration that does not."""

    family = "simulated"

    def __init__(self, name: str, study: SimulatedStudy, world: World, prior: str = "right") -> None:
        super().__init__(prior)
        self.name = name
        self.study = study
        self.world = world
        self.space = study.spec.space
        goals = study.spec.goals
        self.objectives, self.scored, self._slos = goals.objectives, goals.scored, goals.slos
        self.constraint_names = tuple(str(slo) for slo in goals.slos)
        self._stored = parameters_of(study.card.key)
        self._true = world.parameters(self._stored, study.card.key)
        self._hints = self.space.engine_defaults()
        self._searched = replace(study, spec=replace(study.spec, workload=study.spec.searched_workload))
        self._shortened = study.spec.searched_workload != study.spec.workload
        self._true_trials: dict[tuple[str, bool], SimulatedTrial] = {}

    def define(self, trial: Trial) -> dict[str, ParameterValue]:
        """Return a configuration of the trial's suggestions."""
        return self.space.suggest(trial)

    def define_fixed(self, trial: Trial, known: Config) -> None:
        """Make the trial suggest the parameters in `known` and no others."""
        self.space.suggest_fixed(trial, known)

    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        """Return the empty configuration and the engine's effective values."""
        return {}, dict(self._hints)

    def defaults_beside(self, config: Config) -> Config:
        """Return the engine's effective values of the parameters that a configuration leaves out."""
        return self.space.defaults_beside(config)

    def allowed(self, config: Config) -> bool:
        """Return whether the configuration satisfies the rules of the search space."""
        return not self.space.violations(config)

    def true_trial(self, config: Config, searched: bool = False) -> SimulatedTrial:
        """Return the trial of a configuration in the perturbed world, without noise.

        Args:
            config: the configuration.
            searched: whether the trial sends the search's workload, which may be shorter than the study's.
        """
        searched = searched and self._shortened
        key = (config_key(config), searched)
        if key not in self._true_trials:
            trial = (self._searched if searched else self.study).run(config, self._true)
            if trial.metrics is not None:
                speed = self.world.speed(self.space, {**self._hints, **config}, self.name)
                trial = replace(trial, metrics=sped_up(trial.metrics, speed))
            self._true_trials[key] = trial
        return self._true_trials[key]

    def _outcome(
        self, trial: SimulatedTrial, metrics: MetricsByName | None, reference: MetricsByName | None
    ) -> Outcome:
        """Return the outcome of a trial with the given metrics, scored relative to the reference's."""
        if metrics is None:
            return crashed_outcome(trial.seconds)
        values = self._objective_values(metrics)
        constraints = {str(slo): slo.violation(metrics.get(slo.metric)) for slo in self._slos}
        if values is None:
            failed = {**constraints, FAILED: FAILED_VIOLATION}
            return Outcome(None, failed, None, trial.seconds, trial.compiles)
        relative = None if reference is None else score(metrics, reference, self.scored)
        return Outcome(values, constraints, relative, trial.seconds, trial.compiles)

    def measure(self, config: Config, seed: int) -> Outcome:
        """Return the outcome of a trial of the search, with noise."""
        trial = self.true_trial(config, searched=True)
        if trial.metrics is None:
            return self._outcome(trial, None, None)
        world = replace(self.world, noise=self.world.noise * SHORT_NOISE) if self._shortened else self.world
        measured = world.measured(trial.metrics, seeded_generator(config_key(config), seed))
        return self._outcome(trial, measured, self.true_trial(self._reference_config, searched=True).metrics)

    def compute_true_score(self, config: Config) -> float | None:
        """Return the score with the study's workload, without noise; None if the configuration is infeasible."""
        trial = self.true_trial(config)
        outcome = self._outcome(trial, trial.metrics, self._true_reference)
        return outcome.score if outcome.feasible else None

    def compute_prediction(self, config: Config) -> Outcome | None:
        """Return the outcome with the simulator's stored parameters."""
        trial = self.study.run(config, self._stored)
        return self._outcome(trial, trial.metrics, self._predicted_metrics)

    @cached_property
    def _reference_config(self) -> Config:
        """The configuration that scores are relative to: the defaults, or the first one drawn that does not crash."""
        random = seeded_generator("reference", self.name)
        config: Config = {}
        while self.true_trial(config).metrics is None:
            config = self.define(RandomTrial(random))
        return config

    @cached_property
    def _true_reference(self) -> MetricsByName | None:
        return self.true_trial(self._reference_config).metrics

    @cached_property
    def _predicted_metrics(self) -> MetricsByName | None:
        """The predicted metrics of the reference; its true metrics if a crash is predicted."""
        return self.study.run(self._reference_config, self._stored).metrics or self._true_reference

    @cached_property
    def reference(self) -> tuple[float, ...] | None:
        """The objectives of the reference without noise."""
        return self._objective_values(self._true_reference)

    @cached_property
    def predicted_reference(self) -> tuple[float, ...] | None:
        """The objectives that the stored parameters predict for the reference."""
        return self._objective_values(self._predicted_metrics)

    def _objective_values(self, metrics: MetricsByName | None) -> tuple[float, ...] | None:
        """Return the values of the objectives; None if one of them is missing."""
        values = [(metrics or {}).get(objective.metric) for objective in self.objectives]
        known = tuple(value for value in values if value is not None)
        return known if len(known) == len(values) else None

    @cached_property
    def best(self) -> float:
        """The best score of a long search, cached on disk."""
        return find_best(self, self.identity)

    @property
    def identity(self) -> str:
        """The text of everything that the best score depends on."""
        spec = self.study.spec
        domains = zlib.crc32(repr([(each.name, each.domain) for each in self.space.parameters]).encode())
        return f"{self.name} {self.study.card.key} {self.study.version} {self.world} {spec.workload!r} {domains:x}"
