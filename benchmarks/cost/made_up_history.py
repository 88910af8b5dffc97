"""Fills a study with made-up trials, to measure the cost of a long history."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import optuna

from records.trials import Config, TrialKind, TrialOutcome, TrialRecord, Verdict
from storage import open_store
from tuner.study.specification.spec import StudySpec

MADE_UP_LABEL = "filled"
HISTORY_SEED = 1
FACTOR_RANGE = (0.5, 1.5)
"""A made-up metric is a measured one times a factor in this range."""


class MadeUpTrials:
    """Made-up trials of random configurations, which are added to an Optuna study at once.

    Attributes:
        rng: for made-up values.
    """

    def __init__(self, study: optuna.Study) -> None:
        self._study = study
        self._made = optuna.create_study(
            directions=study.directions, sampler=optuna.samplers.RandomSampler(seed=HISTORY_SEED)
        )
        self.rng = random.Random(HISTORY_SEED)

    def ask(self) -> optuna.Trial:
        """Return a trial that suggests random values."""
        return self._made.ask()

    def tell(self, trial: optuna.Trial, config: Config, verdict: Verdict) -> None:
        """Finish a trial as `tuner.study.optuna_study` does."""
        trial.set_user_attr("config", json.dumps(config, sort_keys=True))
        trial.set_user_attr("score", verdict.score)
        for name, value in {**verdict.constraints, "failed": 0.0}.items():
            trial.set_constraint(name, value)
        self._made.tell(trial, [value for value in verdict.values.values() if value is not None])

    def add_to_study(self) -> None:
        """Add the finished trials to the study."""
        self._study.add_trials(self._made.trials)


def fill_study(url: str, spec: StudySpec, pattern: TrialOutcome, trials: int) -> None:
    """Add made-up trials of random configurations to a study.

    Args:
        url: of the database.
        spec: the study.
        pattern: a measured outcome; those of the made-up trials are like it.
        trials: number of trials that the study has afterwards.
    """
    study = optuna.load_study(study_name=spec.name, storage=url)
    made_up = MadeUpTrials(study)
    first = len(study.trials)
    store = open_store(url)
    try:
        for number in range(first, trials):
            trial = made_up.ask()
            config = spec.space.suggest(trial)
            outcome = _made_up_outcome(pattern, made_up.rng)
            verdict = spec.goals.verdict(outcome, spec.goals.metrics(pattern))
            assert verdict is not None
            record = TrialRecord(
                study=spec.name,
                number=number,
                round=0,
                kind=TrialKind.SEARCH,
                label=MADE_UP_LABEL,
                params=config,
                config=config,
                attempts=0,
                created_at=datetime.now(UTC),
            )
            store.add_trial(record)
            store.begin_attempt(spec.name, number)
            store.finish_trial(spec.name, number, 0, outcome, verdict)
            store.mark_synced(spec.name, number, 0, f"{MADE_UP_LABEL}-{number}")
            made_up.tell(trial, config, verdict)
    finally:
        store.close()
    made_up.add_to_study()


def _made_up_outcome(pattern: TrialOutcome, rng: random.Random) -> TrialOutcome:
    """Return an outcome like the pattern, with each metric times a random factor."""
    repeats = []
    for repeat in pattern.repeats[:1]:
        metrics = {name: value and value * rng.uniform(*FACTOR_RANGE) for name, value in repeat.metrics.items()}
        repeats.append(replace(repeat, metrics={**metrics, "success_rate": 1.0}))
    return replace(pattern, repeats=tuple(repeats))


def random_verdict(rng: random.Random) -> Verdict:
    """Return a verdict with random metrics."""
    throughput, tpot, ttft = rng.uniform(500, 4000), rng.uniform(5, 80), rng.uniform(200, 4000)
    values = {"output_throughput": throughput, "p99_tpot_ms": tpot, "p99_ttft_ms": ttft}
    constraints = {"p99_tpot_ms<50": tpot / 50 - 1, "p99_ttft_ms<2000": ttft / 2000 - 1, "success_rate>=1": 0.0}
    return Verdict(values, constraints, throughput / 3332)
