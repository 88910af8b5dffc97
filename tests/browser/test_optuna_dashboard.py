"""optuna-dashboard on a study's database: the trials with their values, parameters, verdicts and importance."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import keep
from tests.browser.servers import running, simulated_study, watched_page
from tests.cli.conftest import NoMlflow
from tuner.processes.ports import lease_port
from tuner.use_cases import optimize as optimize_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TRIALS = 12


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the dashboard."""
    folder = tmp_path_factory.mktemp("optuna")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize_run, "MlflowFollower", NoMlflow)
        simulated_study(folder, "a study", "--trials", str(TRIALS), "--no-reduce")
    with lease_port(folder) as lease:
        program = Path(sys.executable).with_name("optuna-dashboard")
        command = [str(program), "sqlite:///tuner_study/tuner.db", "--host", "127.0.0.1", "--port", str(lease.port)]
        before = contents(folder / "tuner_study" / "tuner.db")
        with running(command, folder, f"http://127.0.0.1:{lease.port}/dashboard"):
            yield f"http://127.0.0.1:{lease.port}"
        assert contents(folder / "tuner_study" / "tuner.db") == before, "pages that are only looked at write nothing"


def contents(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.iterdump())


def test_the_page_of_a_study_has_its_front_and_its_importance(opened: Browser, base: str) -> None:
    with watched_page(opened, base, height=1300) as (page, problems):
        page.goto(f"{base}/dashboard")
        page.get_by_text("a study").first.click()
        page.wait_for_url("**/studies/1")
        for title in ("Pareto Front", "History", "Hyperparameter Importance"):
            page.get_by_text(title, exact=True).filter(visible=True).first.wait_for()
        page.wait_for_selector(".barlayer .bars .point")
        points = page.eval_on_selector_all(".scatterlayer .points path", "all => all.length")
        assert points >= TRIALS
        keep(page, "optuna-dashboard.png")
    assert problems == []


def test_each_trial_has_its_parameters_verdict_and_score(opened: Browser, base: str) -> None:
    with watched_page(opened, base) as (page, problems):
        page.goto(f"{base}/dashboard/studies/1/trials?numbers=0")
        page.wait_for_selector(f"text={TRIALS} Trials")
        text = page.inner_text("body")
        for expected in ("max_num_seqs 256", "verdict feasible", "score 1", "config {}"):
            assert expected in text, text
    assert problems == []


def test_the_study_says_that_it_is_simulated(opened: Browser, base: str) -> None:
    with watched_page(opened, base) as (page, problems):
        page.goto(f"{base}/dashboard/studies/1")
        page.wait_for_selector("text=provenance")
        assert "simulated vllm" in page.inner_text("body")
    assert problems == []
