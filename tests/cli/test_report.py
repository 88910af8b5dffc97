"""`tuner study report` and `study.plot`, on simulated studies, and what both refuse."""

import re
import shutil
import sqlite3
from pathlib import Path

import pytest

import tuner
from tests.cli.command import one_line, ran, run_here
from tests.cli.conftest import short_traffic
from tuner.use_cases.report.charts import CHARTS

STUDY = ("optimize", "--engine", "simulated", "--plain", "--no-reduce", "--confirm-rounds", "2", "--trials", "3")
LOOP = ("--prompts", "40", "--users", "20")


@pytest.fixture(scope="module", autouse=True)
def report_of_a_study() -> None:
    """A study ends with its report."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A folder with a study of a closed loop and one of traffic."""
    made = tmp_path_factory.mktemp("reports")
    short_traffic(made / "traffic.yaml")
    for name, load in (("loop", LOOP), ("traffic", ("--workload", "traffic.yaml"))):
        printed = ran(made, *STUDY, *load, "--study", name)
        assert f"read the report       tuner_study/artifacts/{name}/report.html" in printed.out
    return made


def test_every_study_ends_with_its_report(folder: Path) -> None:
    for name, chart in (("loop", "Latency percentiles"), ("traffic", "Requests within their SLO")):
        text = (folder / "tuner_study" / "artifacts" / name / "report.html").read_text(encoding="utf-8")
        assert "Simulated, not measured" in text
        assert f"<h3>{chart}</h3>" in text
        assert "<td>numbers are</td>" in text
        layers = r"<td>layers of the model</td>\s*<td[^>]*>[\d.]+ B weights \(.* layers with full attention"
        assert re.search(layers, text)
        assert len(text.encode()) < 6_000_000
        assert ("<h3>Latency distributions</h3>" in text) is (name == "traffic")
        assert "not on this machine" not in text


def test_a_report_is_written_where_the_user_says(folder: Path) -> None:
    printed = run_here(folder, "study", "report", "loop", "-o", "loop.html")
    assert (printed.code, printed.out) == (0, "wrote loop.html; open it in a browser\n")
    assert "<h1>loop</h1>" in (folder / "loop.html").read_text(encoding="utf-8")
    ran(folder, "study", "report")
    assert "<h1>traffic</h1>" in (folder / "report.html").read_text(encoding="utf-8")  # the latest


def test_a_report_replaces_no_other_file(folder: Path) -> None:
    (folder / "mine.html").write_text("mine")
    one_line(
        run_here(folder, "study", "report", "loop", "-o", "mine.html"),
        "there is a file that the tuner did not write, which stays",
    )
    assert (folder / "mine.html").read_text() == "mine"
    ran(folder, "study", "report", "traffic")
    assert run_here(folder, "study", "report", "loop").out == "wrote report-loop.html; open it in a browser\n"
    assert "<h1>traffic</h1>" in (folder / "report.html").read_text(encoding="utf-8")
    ran(folder, "study", "report", "loop", "--bundle", "-o", "mine.zip")
    assert (
        "there is a file of study 'loop'"
        in run_here(folder, "study", "report", "traffic", "--bundle", "-o", "mine.zip").err
    )


def test_several_studies_are_compared_in_one_file(folder: Path) -> None:
    ran(folder, "study", "report", "loop", "traffic", "loop", "-o", "both.html")
    text = (folder / "both.html").read_text(encoding="utf-8")
    assert "<h1>2 studies</h1>" in text
    assert "The loads differ: loop: 20 concurrent requests" in text
    for name in ("loop", "traffic"):
        assert f"<h2>{name}</h2>" in text


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("nothing",), "tuner: study 'nothing': the database has no study of this name"),
        (("loop", "-o", "no/folder.html"), "the file cannot be written"),
        (("loop", "--storage", "nothing.db"), "nothing.db"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: tuple[str, ...], rule: str) -> None:
    one_line(run_here(folder, "study", "report", *words), rule)


def test_every_figure_of_the_report_is_a_method_of_the_study(folder: Path) -> None:
    storage = str(folder / "tuner_study" / "tuner.db")
    missing = {"loop": {"classes", "distributions", "lengths", "rates"}, "traffic": {"rates"}}
    for name, without in missing.items():
        plot = tuner.load_study(name, storage=storage).plot
        assert dir(plot) == sorted(CHARTS)
        assert plot.pareto.__doc__ == CHARTS["pareto"].__doc__
        for figure in {*CHARTS} - without - {"failures", "importance"}:  # a short search has neither
            assert getattr(plot, figure)().data
        for figure in without:
            with pytest.raises(tuner.UserError, match=f"no numbers for the figure {figure}"):
                getattr(plot, figure)()


def test_a_study_whose_artifacts_are_gone_says_what_is_left_out(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "tuner_study", tmp_path / "tuner_study", ignore=shutil.ignore_patterns("artifacts"))
    with sqlite3.connect(tmp_path / "tuner_study" / "tuner.db") as database:
        database.execute("UPDATE tuner_trials SET artifacts = replace(artifacts, ?, '/gone')", (str(folder),))
    printed = run_here(tmp_path, "study", "report", "traffic")
    assert (printed.code, printed.err) == (0, "")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = re.search(r"The artifacts of (\d+) of (\d+) measurements are not on this machine", text)
    assert found is not None
    assert found[1] == found[2]
    assert "<h3>Latency percentiles</h3>" in text
    assert "<h3>Latency distributions</h3>" not in text
