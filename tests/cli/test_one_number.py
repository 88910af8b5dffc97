"""Everything that shows a study shows one number for a metric, and one interval for a comparison."""

import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from dashboards.mlflow.run_layout import best_of, note_of
from records.trials import StudyRecord, TrialRecord
from storage import open_store
from tests.cli.command import ran, run_here
from tests.cli.conftest import short_traffic
from tuner.api import Study
from tuner.export.from_study import deployment_of
from tuner.results import text
from tuner.results.findings import Findings
from tuner.use_cases import optimize as optimize_run
from tuner.use_cases.places import storage_url
from tuner.use_cases.report.page import result_page
from tuner.use_cases.report.reported import ReportedStudy

FEW = ("--trials", "4", "--finalists", "2", "--confirm-rounds", "2")
LOOP = ("--prompts", "20", "--users", "10")
SUFFIX = '{"speculative": "suffix", "suffix_tokens": 12}'
STUDIES = {
    "default": LOOP,
    "greedy": (*LOOP, "--preset", "qwen2.5-0.5b-t4-greedy", "--enqueue", SUFFIX),
    "mixed": ("--workload", "traffic.yaml"),
    "two": (*LOOP, "--preset", "qwen2.5-0.5b-t4-two-servers"),
}


@dataclass(frozen=True)
class Finished:
    """A study that ended, in its folder."""

    name: str
    folder: Path

    @cached_property
    def url(self) -> str:
        return storage_url(str(self.folder / "tuner_study" / "tuner.db"), create=False)

    @cached_property
    def record(self) -> StudyRecord:
        with closing(open_store(self.url)) as store:
            found = store.study(self.name)
        assert found is not None
        return found

    @cached_property
    def trials(self) -> Sequence[TrialRecord]:
        with closing(open_store(self.url)) as store:
            return store.trials(self.name)

    @cached_property
    def findings(self) -> Findings:
        return Findings.of(self.record, self.trials)

    def printed(self, *argv: str) -> str:
        found = ran(self.folder, *argv)
        return found.out


@pytest.fixture(scope="module", params=[*list(STUDIES)[:-1], pytest.param("two", marks=pytest.mark.slow)])
def study(request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp(request.param)
    short_traffic(folder / "traffic.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize_run, "write_files", lambda *_: (None, None))  # each surface is asked for here
        ended = run_here(
            folder, "optimize", "--engine", "simulated", "--study", request.param, *FEW, *STUDIES[request.param]
        )
    assert ended.code == 0, ended.err
    return Finished(request.param, folder)


def objectives(study: Finished) -> list[str]:
    return [each.metric for each in study.findings.objectives]


def rows(printed: str) -> dict[str, str]:
    """Return the first line of a table that begins with each name."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        name = line.split("  ")[0].strip()
        found.setdefault(name, line)
    return found


def test_the_value_of_what_is_exported_is_the_same_everywhere(study: Finished) -> None:
    number = study.findings.exported
    assert number is not None
    best = Study(study.name, study.url).best
    logged = best_of(study.record, study.trials)
    assert best is not None
    assert logged is not None
    compared = json.loads(study.printed("study", "compare", f"{study.name}#0", f"{study.name}#{number}", "--json"))
    tiles = {tile.label: tile.value for tile in result_page(ReportedStudy(study.record, tuple(study.trials))).tiles}
    table = rows(study.printed("study", "show", study.name))
    script = deployment_of(study.record, number, study.trials).verification.reference
    for name in objectives(study):
        value = best.metrics[name]
        assert logged.metrics[name] == value
        assert compared["metrics"][name]["other"] == value
        assert name not in script or script[name].value == value
        shown = text.with_unit(name, value, None)
        assert tiles[name] == shown
        assert shown in table[name]


def test_the_comparison_with_the_reference_is_the_same_everywhere(study: Finished) -> None:
    number, reference = study.findings.challenger, study.findings.baseline
    assert number is not None
    stored = json.loads(study.printed("study", "show", study.name, "--json"))
    contender: dict[str, Any] = next(each for each in stored["contenders"] if each["number"] == number)
    compared = json.loads(
        study.printed("study", "compare", f"{study.name}#{reference}", f"{study.name}#{number}", "--json")
    )
    front = json.loads(study.printed("study", "show", study.name, "--pareto", "--json"))["front"]
    table, note = rows(study.printed("study", "show", study.name)), note_of(study.record) or ""
    assert compared["score"] == contender["score"]
    for name in objectives(study):
        ratio = contender["metrics"][name]
        assert {key: compared["metrics"][name][key] for key in ("ratio", "low", "high")} == {
            key: ratio[key] for key in ("ratio", "low", "high")
        }
        assert f"{text.ratio(ratio)} {text.interval(ratio)}".strip() in " ".join(table[name].split())
        assert text.interval(ratio).replace(" to ", ", ") in note.replace("\N{NO-BREAK SPACE}", " ")
        of_front = [point["metrics"][name] for point in front if point["trial"] == number]
        assert [each["ratio"] for each in of_front] == pytest.approx([ratio["ratio"]] * len(of_front))
        assert [each["low"] for each in of_front] == pytest.approx([ratio["low"]] * len(of_front))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_number_is_cut_at_any_width(study: Finished, width: int) -> None:
    from rich.console import Console

    from tuner.cli.output.pages.optimize import conclusion_parts
    from tuner.cli.output.parts import _print

    console = Console(width=width, force_terminal=True, color_system=None, markup=False, record=True, file=None)
    with console.capture() as captured:
        for part in conclusion_parts(study.findings):
            _print(console, part)
    lines = captured.get().splitlines()
    assert [line for line in lines if "…" in line] == []


def test_every_flag_of_the_command_stands_in_the_table_of_flags(study: Finished) -> None:
    winner = study.findings.winner
    trial = None if winner is None else study.findings.trial(winner)
    assert trial is not None
    printed = study.printed("study", "show", study.name)
    for name, value in trial.config.items():
        assert value is None or re.search(rf"^{name}={re.escape(str(value))}\s", printed, re.MULTILINE), name
