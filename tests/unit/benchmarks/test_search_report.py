"""From searches to figures and files, and the command line."""

from __future__ import annotations

import pytest

from benchmarks.search.play.records import PlayedTrial, SearchRecord
from benchmarks.search.play.search import play
from benchmarks.search.problems.problem import Outcome
from benchmarks.search.problems.synthetic.problems import SYNTHETIC
from benchmarks.search.report.figures import estimate, mean_differences, score_after, trials_until
from benchmarks.search.report.summary import SearchSummary, hypervolume, summarise_search
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
