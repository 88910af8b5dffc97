"""The goals of a study, and the verdict on a trial: objective values, constraints and score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.records import Culprit, TrialOutcome, Verdict
from tuner.scoring.objectives import Objective
from tuner.scoring.score import score
from tuner.scoring.slo import Slo

FAILED = "failed"
FAILED_VIOLATION = 10.0
"""Constraint value of a configuration that failed.

An SLO that is missed by a factor of ten has the violation 9, so a sampler prefers a slow configuration to one that
fails."""


@dataclass(frozen=True)
class Goals:
    """The goals of a study.

    Args:
        objectives: what the study optimises.
        slos: the constraints.
        scored: the objectives that the score weighs; the success rate is one of them in every study.
    """

    objectives: tuple[Objective, ...]
    slos: tuple[Slo, ...]
    scored: tuple[Objective, ...]

    def has_objective(self, name: str) -> bool:
        """Return whether a metric is an objective."""
        return any(objective.metric == name for objective in self.objectives)

    def verdict(self, outcome: TrialOutcome, reference: Mapping[str, float | None] | None) -> Verdict | None:
        """Return the verdict; None where the configuration is not at fault for a failure.

        Args:
            outcome: of the trial.
            reference: the metrics of the defaults by name; None while they are not measured.
        """
        values = {objective.metric: outcome.metric(objective.metric) for objective in self.objectives}
        if outcome.failure is not None:
            if outcome.failure.culprit is not Culprit.CONFIGURATION:
                return None
            return Verdict(values, {FAILED: FAILED_VIOLATION}, None)
        constraints = {str(slo): slo.violation(outcome.metric(slo.metric)) for slo in self.slos}
        if None in values.values():
            constraints[FAILED] = FAILED_VIOLATION
        measured = self.metrics(outcome)
        return Verdict(values, constraints, None if reference is None else score(measured, reference, self.scored))

    def metrics(self, outcome: TrialOutcome) -> dict[str, float | None]:
        """Return the outcome's value of every metric that the score weighs."""
        return {objective.metric: outcome.metric(objective.metric) for objective in self.scored}
