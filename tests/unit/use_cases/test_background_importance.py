"""The importance of parameters from another process equals that of this one, also if that process ends."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from tests.unit.sampler.test_importance import trials
from tuner.sampler.importance import stored_importance
from tuner.use_cases.report.background import BackgroundImportance


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with Optuna's study `s` of 20 trials."""
    url = f"sqlite:///{tmp_path}/t.db"
    optuna.create_study(storage=url, study_name="s").add_trials(trials(20))
    return url


def test_another_process_answers_as_this_one(url: str) -> None:
    with BackgroundImportance() as background:
        background.ask(url, "s")
        found = background.answer()
    assert found == stored_importance(url, "s")
    assert list(found) == ["strong", "idle"]


def test_a_process_that_is_killed_is_not_needed(url: str) -> None:
    with BackgroundImportance() as background:
        background._process.kill()
        background._process.wait()
        background.ask(url, "s")
        assert background.answer() == stored_importance(url, "s")


def test_leaving_the_context_ends_the_process() -> None:
    with BackgroundImportance() as background:
        assert background._process.poll() is None
    assert background._process.returncode is not None


def test_a_study_that_optuna_does_not_know_has_no_importance(url: str) -> None:
    with BackgroundImportance() as background:
        background.ask(url, "another")
        assert background.answer() == {}
