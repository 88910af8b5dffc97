"""Numbers without a trial: what `tuner show` and `tuner trials` print about suggestions that never ran."""

from __future__ import annotations

from pathlib import Path

import optuna

from storage import normalise_url
from tests.cli.command import run_here
from tuner.study.optuna_storage import RULED_OUT

FLAGS = ("--engine", "simulated", "--prompts", "8", "--users", "4", "--trials", "3", "--confirm-rounds", "0")


REASONS = {RULED_OUT: "a rule of the space", "dropped": "the same server"}


def test_show_says_what_a_number_without_a_trial_is(tmp_path: Path) -> None:
    run_here(tmp_path, "optimize", *FLAGS)
    url = normalise_url(str(tmp_path / "tuner_study" / "tuner.db"))
    study = optuna.load_study(study_name="qwen2.5-0.5b-t4-users4-prompts8", storage=url)
    number = len(study.trials)
    for attribute, reason in REASONS.items():
        study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.PRUNED, user_attrs={attribute: reason}))
    run_here(tmp_path, "optimize", *FLAGS[:-3], "5", *FLAGS[-2:])
    for suggested, reason in enumerate(REASONS.values(), number):
        printed = run_here(tmp_path, "show", str(suggested))
        assert printed.code == 2
        assert f"has no trial {suggested}: the sampler suggested it, and it never ran: {reason}" in printed.err
    assert f"were dropped before a launch: {number}, {number + 1}" in run_here(tmp_path, "trials").out
