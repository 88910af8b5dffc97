"""Configurations for new trials of an optimization: its search space, and the sampler that chooses from it.

A configuration depends on the seed and the earlier trials only, so every process proposes the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from search_spaces import Context, HardwareProfile, ResolvedSpace, SpaceError, parse_space
from search_spaces.yaml_file import yaml_text
from tuner.errors import SettingError
from tuner.scoring.goals import FAILED, FAILED_VIOLATION, Objective
from tuner.service.http.optimizations.models import Optimization
from tuner.study.optuna_study import SharedTrial, residual_sampler, shown, tpe_sampler

SAMPLED_TRIES, MOST_TRIES = 20, 500
"""Proposals that may break a rule of the space: by the sampler, and with the random ones that follow."""

_NO_HARDWARE = Context(HardwareProfile("none", "none", "cpu", None, None, None))


@dataclass(frozen=True)
class Proposer:
    """Proposes configurations.

    Attributes:
        space: the search space; facts of engines, models and workloads are unknown in its expressions.
        objectives: with their weights in the score.
        sampler: `residual`, `tpe` or `random`.
    """

    space: ResolvedSpace
    objectives: tuple[Objective, ...]
    sampler: str
    seed: int

    @property
    def directions(self) -> list[StudyDirection]:
        return [StudyDirection[each.direction.name] for each in self.objectives]

    def propose(self, trials: Sequence[FrozenTrial]) -> tuple[FrozenTrial, Mapping[str, Any]]:
        """Return the next trial as Optuna has it, with the sampler's own values, and its configuration.

        Raises:
            SettingError: if the rules of the space exclude every proposal.
        """
        seed = (self.seed * 1_000_003 + len(trials)) % 2**32
        known = [] if self.sampler == "random" else shown(trials)
        study = optuna.create_study(directions=self.directions, sampler=self._sampler(seed, trials, known))
        study.add_trials([SharedTrial.of(each) for each in known])
        for number in range(MOST_TRIES):
            if number == SAMPLED_TRIES:
                study.sampler = RandomSampler(seed=seed)
            trial = study.ask()
            config = self.space.suggest(trial)
            if not self.space.violations(config):
                return study.get_trials(deepcopy=False)[-1], config
            trial.set_constraint(FAILED, FAILED_VIOLATION)
            study.tell(trial, state=TrialState.PRUNED)
        rule = f"the rules exclude {MOST_TRIES} of {MOST_TRIES} configurations that were drawn"
        raise SettingError("space", None, rule, "use conditions or smaller ranges in place of rules")

    def _sampler(self, seed: int, trials: Sequence[FrozenTrial], known: Sequence[FrozenTrial]) -> BaseSampler:
        if self.sampler == "random":
            return RandomSampler(seed=seed)
        if self.sampler == "tpe":
            return tpe_sampler(seed)
        numbers = {each.number for each in known}
        hidden = [each.params for each in trials if each.number not in numbers]
        return residual_sampler(self.space, self.objectives, None).with_seed(self.seed, hidden)


def proposer_of(asked: Optimization) -> Proposer:
    """Return the proposer of an optimization.

    Raises:
        SettingError: if the space is not valid, or a metric is there twice.
    """
    names = [each.metric for each in asked.objectives]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise SettingError("objectives", repeated, "the metric is there twice", "keep one of them")
    objectives = tuple(Objective(each.metric, each.direction, each.weight) for each in asked.objectives)
    return Proposer(read_space(asked.space), objectives, asked.sampler, asked.seed)


def read_space(given: str | Mapping[str, Any]) -> ResolvedSpace:
    """Return the space of YAML text, or of the same content as JSON, in which descriptions may be left out.

    Raises:
        SettingError: if it is not valid, or has no parameter.
    """
    try:
        declared = parse_space(given if isinstance(given, str) else yaml_text(_described(given)))
        # All are selected, so that no condition is tried on all combinations of values.
        space = declared.resolve(_NO_HARDWARE, only=declared.parameter_names)
    except SpaceError as error:
        raise SettingError("space", None, str(error)) from None
    if not space.parameters:
        why = "; ".join(dropped.reason for dropped in space.dropped)
        raise SettingError("space", None, f"the space has no parameter: {why}", "add one")
    return space


def _described(given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = given.get("parameters")
    if not isinstance(parameters, Mapping):
        return dict(given)
    described = {
        name: {"description": name, **each} if isinstance(each, Mapping) else each for name, each in parameters.items()
    }
    return {**given, "parameters": described}
