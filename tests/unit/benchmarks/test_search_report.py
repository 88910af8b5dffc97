"""From searches to figures and files, and the command line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search.__main__ import grouped_summaries, premise_of, problem_settings, search_arguments
from benchmarks.search.play.records import PlayedTrial, SearchRecord
from benchmarks.search.play.search import play
from benchmarks.search.problems.catalogue import ProblemSettings, make_problem
from benchmarks.search.problems.problem import Outcome
from benchmarks.search.problems.synthetic.problems import SYNTHETIC
from benchmarks.search.report.figures import estimate, mean_differences, score_after, trials_until
from benchmarks.search.report.files import read_summaries, results_data
from benchmarks.search.report.summary import SearchSummary, hypervolume, summarise_search
from benchmarks.search.report.tables import print_problem
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS, RESIDUAL_NAME
from tests.unit.benchmarks.toy import Toy, scripted


def played(values: tuple[float, ...], score: float) -> PlayedTrial:
    return PlayedTrial({}, Outcome(values, {}, score), score, 0.0, 0.0, 0.0, 1.0)


def test_the_incumbent_has_the_best_measured_score_and_counts_by_its_true_one() -> None:
    problem = Toy(lucky=2)
    summary = summarise_search(problem, play(problem, scripted(6, 2, 8)[0], 4, seed=0))
    assert summary.incumbent_scores == (1.0, 6.0, 2.0, 2.0)
    assert summary.measured_over_true == 50.0
    assert summary.best_true_score == 8.0
    finalists = summarise_search(problem, play(problem, scripted(6, 2, 8)[0], 4, seed=0), finalists=2)
    assert finalists.incumbent_scores == (1.0, 6.0, 6.0, 8.0)


def test_figures_of_one_search_and_of_several_seeds() -> None:
    assert trials_until([0.0, 0.5, 0.96, 0.9], 0.95, 60) == 3
    assert trials_until([0.0, 0.5], 0.95, 60) == 61
    assert score_after([0.1, 0.2], 60) == 0.2
    found = estimate([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, 1.0, 3.0)
    assert found.text(1) == "2.0 [1.0, 3.0]"
    assert estimate([]) is None


def test_the_defaults_have_a_hypervolume_of_one() -> None:
    problem = SYNTHETIC["two-objectives"]("right")
    base = problem.reference
    assert base is not None

    def trial(throughput: float, tpot: float) -> PlayedTrial:
        assert base is not None
        return played((base[0] * throughput, base[1] * tpot), 1.0)

    assert hypervolume(problem, [trial(1, 1)]) == pytest.approx(1.0)
    assert hypervolume(problem, [trial(2, 1)]) == pytest.approx(2.0)
    assert hypervolume(problem, [trial(2, 1), trial(1, 0.5)]) == pytest.approx(3.0)
    assert hypervolume(problem, [trial(4, 3)]) == 0.0


def test_differences_are_taken_seed_by_seed() -> None:
    def run(seed: int, score: float) -> SearchSummary:
        record = SearchRecord("toy", "x", seed, 1, 60, (played((score,), score),), 0, False)
        return summarise_search(Toy(), record)

    found = mean_differences([run(1, 0.5), run(2, 0.9)], [run(2, 0.8), run(3, 0.1), run(1, 0.4)], 1.0)
    score = found["score_60"]
    assert score is not None
    assert [score.value, score.low, score.high] == pytest.approx([0.1, 0.1, 0.1])


@pytest.fixture(scope="module")
def summaries() -> list[SearchSummary]:
    """Two short searches of one problem by each of two samplers."""
    problem = make_problem("crash-half", ProblemSettings())
    return [
        summarise_search(problem, play(problem, COMPARED_SAMPLERS[name], 4, seed))
        for name in ("random", RESIDUAL_NAME)
        for seed in (0, 1)
    ]


def premise(*words: str) -> dict[str, Any]:
    arguments = search_arguments(["--problems", "crash-half", "--trials", "4", *words])
    return premise_of(arguments, problem_settings(arguments))


def results(summaries: list[SearchSummary], premise: dict[str, Any]) -> dict[str, Any]:
    data = results_data(grouped_summaries(summaries, ["crash-half"]), {"crash-half": 1.5}, premise)
    plain: dict[str, Any] = json.loads(json.dumps(data))
    return plain


def plain(summaries: list[SearchSummary]) -> list[Any]:
    found: list[Any] = json.loads(json.dumps([asdict(run) for run in summaries]))
    return found


def test_reuse_reads_the_files_of_json(summaries: list[SearchSummary], tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results(summaries, premise())))
    assert plain(read_summaries(file, ["crash-half"], premise())) == plain(summaries)
    assert read_summaries(file, ["flat"], premise()) == []
    without_prior = read_summaries(file, ["crash-half"], premise("--prior", "none"))
    assert {run.sampler for run in without_prior} == {"random"}
    with pytest.raises(SystemExit, match="trials 4 instead of 5"):
        read_summaries(file, ["crash-half"], premise("--trials", "5"))


def test_every_table_has_a_caption_and_every_sampler_a_row(
    summaries: list[SearchSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    print_problem("crash-half", grouped_summaries(summaries, ["crash-half"])["crash-half"], 1.5, RESIDUAL_NAME)
    output = capsys.readouterr().out
    assert "best known score 1.5; median [95 % interval] of n = 2 seeds" in output
    tables = output.strip().split("\n\n")[1:]
    assert len(tables) == 4
    rows = [line.split()[0] for table in tables for line in table.splitlines() if line.startswith("  ")]
    assert rows == [*["sampler", "random", RESIDUAL_NAME] * 3, "sampler", "random"]
