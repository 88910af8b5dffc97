"""The page that the link of `tuner study ui` opens: MLflow's training mode, ten columns, the best score first."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from dashboards.plots.style import plotly_script
from tests.browser.chromium import keep
from tests.browser.servers import running, simulated_study, watched_page
from tuner.processes.ports import lease_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

COLUMNS = [
    *("score", "state", "output_throughput", "p99_tpot_ms", "p99_ttft_ms", "p99_itl_ms"),
    *("cost_per_million_output_tokens", "flags_changed", "simulated/total_s"),
]
"""The view's columns without `failure`: MLflow leaves out a column without a value, and no trial failed."""
UNKNOWN_USER = "/ajax-api/2.0/mlflow/users/current"
"""MLflow's page asks a server without authentication for its user, and gets 404."""

ASSISTANT_CLOSED = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
"""MLflow opens a side panel on the first visit; after it is closed, it stays closed."""


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link that `tuner study ui` prints."""
    folder = tmp_path_factory.mktemp("ui")
    simulated_study(folder, "a study", "--trials", "12", "--no-reduce")
    with lease_port(folder) as lease:
        command = [sys.executable, "-m", "tuner.cli.main", "study", "ui", "a study", "--port", str(lease.port)]
        with running(command, folder, f"http://127.0.0.1:{lease.port}/health") as output:
            while (found := re.search(r"^MLflow runs: (\S+)$", output.read_text(), re.MULTILINE)) is None:
                time.sleep(0.1)
            yield found[1]


def base(link: str) -> str:
    return link.partition("/#")[0]


def cells(page: Page, column: str) -> list[str]:
    """Return the texts of a column from the top row to the last one that is drawn."""
    selector = f".ag-center-cols-container .ag-row [col-id='{column}']"
    rows = page.eval_on_selector_all(
        selector, "all => all.map(e => [Number(e.closest('.ag-row').getAttribute('row-index')), e.innerText.trim()])"
    )
    return [text for _, text in sorted(rows)]


def test_the_link_opens_the_trials_with_the_best_score_first(opened: Browser, link: str) -> None:
    with watched_page(opened, base(link), width=2000, height=800) as (page, problems):
        page.add_init_script(ASSISTANT_CLOSED)
        page.goto(link)
        page.wait_for_selector("text=#0 defaults")
        page.wait_for_selector(".ag-header-cell[col-id='metrics.`score`']")
        headings = page.eval_on_selector_all(
            ".ag-header-cell",
            "all => all.map(e => [e.getBoundingClientRect().x, e.innerText.trim()]).sort((a, b) => a[0] - b[0])",
        )
        texts = [text for _, text in headings if text not in ("", "Run Name", "Created", "Duration")]
        assert texts == COLUMNS
        scores = [float(text) for text in cells(page, "metrics.`score`") if text != "-"]
        assert len(scores) == 12, "no rounds of finalists"
        assert scores == sorted(scores, reverse=True)
        assert 1.0 in scores
        modes = page.eval_on_selector_all("nav a, aside a", "all => all.map(e => e.innerText.trim())")
        assert "Models" in modes, "the training mode"
        assert "Judges" not in modes, "not the GenAI mode"
        keep(page, "mlflow.png")
    assert [each for each in problems if UNKNOWN_USER not in each] == []


def test_the_description_links_to_the_run_with_report_and_plots(opened: Browser, link: str) -> None:
    with watched_page(opened, base(link)) as (page, problems):
        page.goto(link)
        # Stands for Plotly's CDN, from which the pictures load their script.
        script, allowed = plotly_script(), {"Access-Control-Allow-Origin": "*", "Content-Type": "text/javascript"}
        page.context.route("https://cdn.plot.ly/**", lambda route: route.fulfill(body=script, headers=allowed))
        with page.expect_popup() as opening:
            page.locator("a[href*='?workflowType=']", has_text="a study").click()
        run = opening.value
        run.get_by_role("tab", name="Artifacts").click()
        run.get_by_text("report.html", exact=True).wait_for()
        run.get_by_text("pictures", exact=True).click()
        for name in ("front", "importance", "progress"):
            run.get_by_text(f"{name}.html", exact=True).click()
            drawn = run.frame_locator("iframe").locator(".js-plotly-plot .main-svg").first
            drawn.wait_for()
            run.frame_locator("iframe").get_by_text(f": {name}").first.wait_for()
        keep(run, "mlflow-study.png")
    assert [each for each in problems if UNKNOWN_USER not in each] == []


def test_defaults_and_trials_can_be_compared(opened: Browser, link: str) -> None:
    with watched_page(opened, base(link)) as (page, problems):
        page.goto(link)
        page.wait_for_selector("text=#0 defaults")
        own = page.locator(".ag-row", has_text="#0 defaults").first.get_attribute("row-index")
        for row in [own, *(other for other in "012" if other != own)][:3]:
            page.locator(f".ag-row[row-index='{row}'] .ag-checkbox-input").first.check()
        page.get_by_role("button", name="Compare").click()
        page.wait_for_selector("text=Comparing 3 Runs from 1 Experiment")
        page.wait_for_selector(".js-plotly-plot .parcoords")
        assert "#0 defaults" in page.inner_text("body")
        keep(page, "mlflow-compare.png")
    assert [each for each in problems if UNKNOWN_USER not in each] == []
