"""The problems that samplers are compared on: formulas, tables, the simulated engine."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search.play import play
from benchmarks.search.problems.best import cache_file, find_best, raise_best
from benchmarks.search.problems.catalogue import Settings, make_problem
from benchmarks.search.problems.predicted import flags_of
from benchmarks.search.problems.problem import Config, Drawn, Problem
from benchmarks.search.problems.related import COUSINS
from benchmarks.search.problems.simulated import SimulatedProblem, simulated
from benchmarks.search.problems.synthetic import SYNTHETIC, CrashHalf
from benchmarks.search.problems.tables import TableProblem
from benchmarks.search.problems.world import World
from benchmarks.search.samplers.catalogue import RIVALS
from benchmarks.search.samplers.transfer import lessons, taught_by
from benchmarks.simulator.rows import h200
from search_spaces import ParameterValue


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def optimum(problem: Problem) -> Config:
    return max(problem.optima(), key=lambda config: problem.truth(config) or 0.0)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", [*SYNTHETIC, *COUSINS])
def test_known_optima_are_the_optima(name: str) -> None:
    problem = make_problem(name, Settings())
    random = rng()
    scores = [problem.truth(problem.define(Drawn(random))) for _ in range(2000)]
    assert max(score for score in scores if score is not None) <= problem.best * (1 + 1e-12)
    assert problem.best >= (problem.truth({}) or 0.0)


def test_a_change_of_any_parameter_of_an_optimum_is_no_gain() -> None:
    for name in ("conditional", "crash-half", "infeasible-defaults", "two-objectives", *COUSINS):
        problem = make_problem(name, Settings())
        best = optimum(problem)
        assert problem.truth(best) == problem.best
        random = rng()
        for lost in best:
            given = {key: value for key, value in best.items() if key != lost}
            near = problem.define(Drawn(random, given, {lost: best[lost]}))
            assert (problem.truth(near) or 0.0) <= problem.best * (1 + 1e-12), (name, near)


def test_the_synthetic_problems_are_what_they_say() -> None:
    random = rng()
    crash = CrashHalf()
    lost = [crash.truth(crash.define(Drawn(random))) is None for _ in range(2000)]
    assert np.mean(lost) == pytest.approx(0.5, abs=0.05)
    assert SYNTHETIC["infeasible-defaults"]("right").truth({}) is None
    flat = SYNTHETIC["flat"]("right")
    assert {flat.truth(flat.define(Drawn(random))) for _ in range(50)} == {1.0}
    shown = [flat.measure({}, seed).score or 0.0 for seed in range(300)]
    assert np.std(np.log(shown)) == pytest.approx(0.03, rel=0.15)
    conditional = SYNTHETIC["conditional"]("right")
    by_method: dict[ParameterValue, list[float]] = {}
    for _ in range(3000):
        config = conditional.define(Drawn(random))
        by_method.setdefault(config["method"], []).append(conditional.truth(config) or 0.0)
    assert np.mean(by_method["draft"]) == min(np.mean(scores) for scores in by_method.values())


def test_a_misleading_prior_turns_improvements_around() -> None:
    problem = SYNTHETIC["conditional-misled"]("right")
    random = rng()
    pairs = []
    for _ in range(60):
        config = problem.define(Drawn(random))
        prior = problem.prior(config)
        assert prior is not None
        if prior.score is not None:
            pairs.append((problem.truth(config) or 0.0, prior.score))
    assert 30 < len(pairs) < 55
    assert all(truth * score == pytest.approx(1.0) for truth, score in pairs)
    assert problem.prior({}) == problem.exact({})  # type: ignore[attr-defined]
    assert SYNTHETIC["conditional-misled"]("none").prior({}) is None
    assert SYNTHETIC["conditional"]("right").prior({}) is None


def test_rows_with_failed_requests_are_infeasible() -> None:
    problem = make_problem("h200-b7", Settings())
    assert isinstance(problem, TableProblem)
    short = [row for row in problem.rows if row.config.get("max_model_len") == 2048]
    assert short
    assert all(problem.truth(row.config) is None for row in short)
    assert problem.best == pytest.approx(1.336, abs=0.001)


def test_predictions_of_a_table_are_made_with_the_flags_of_its_rows() -> None:
    for name in ("h200-a05", "h200-b7"):
        problem = make_problem(name, Settings())
        assert isinstance(problem, TableProblem)
        rows = {row.args for row in h200() if row.group == name.replace("-", "_")}
        for row in problem.rows:
            said = {key: value for key, value in row.recorded.items() if (key, value) != ("api_server_count", 1)}
            assert row.args in rows
            assert sorted(row.args[2:]) == sorted(flags_of(said))


@pytest.fixture(scope="module")
def served() -> SimulatedProblem:
    return simulated("sim-h200", World())


def test_a_simulated_measurement_is_the_truth_and_noise(served: SimulatedProblem) -> None:
    config = {"max_num_seqs": 128}
    assert served.measure(config, 1) == served.measure(config, 1)
    scores = [served.measure(config, seed).score or 0.0 for seed in range(200)]
    assert np.mean(np.log(scores)) == pytest.approx(math.log(served.truth(config) or 0.0), abs=0.01)
    assert np.std(np.log(scores)) == pytest.approx(0.032, rel=0.2)
    assert served.truth({}) == pytest.approx(1.0)


def test_the_same_world_is_what_is_predicted() -> None:
    same = simulated("sim-h200", World(spread=0.0, choices=0.0))
    config = {"max_num_seqs": 128, "kv_cache_dtype": "fp8"}
    prior = same.prior(config)
    assert prior is not None
    assert prior.score == pytest.approx(same.truth(config))
    assert simulated("sim-h200", World(), "none").prior(config) is None


def test_a_wrong_prior_of_the_simulator_is_the_inverse_of_the_right_one(served: SimulatedProblem) -> None:
    wrong = simulated("sim-h200", World(), "wrong")
    config = {"max_num_seqs": 128}
    turned, right = wrong.prior(config), served.prior(config)
    base = served.predicted_reference
    assert base is not None
    assert turned is not None
    assert right is not None
    assert right.values is not None
    assert turned.values is not None
    for one, other, each in zip(right.values, turned.values, base, strict=True):
        assert one * other == pytest.approx(each * each)
    assert wrong.prior({}) == served.prior({})


def test_a_simulated_failure_takes_its_time() -> None:
    phi = simulated("sim-l4-phi4", World())
    failed = phi.measure({}, 0)
    assert failed.values is None
    # 30 s on a host of speed 1, of which 25 are imports; the L4's has half of that speed
    assert failed.seconds == pytest.approx(10)
    assert simulated("sim-l4-phi4", World(), forked=False).measure({}, 0).seconds == pytest.approx(60)
    assert phi.reference is not None


def test_a_search_may_send_less_and_is_judged_by_the_whole_load() -> None:
    world = World(choices=0)
    whole, short = simulated("sim-t4", world), simulated("sim-t4", world, search_load=0.5)
    config = {"max_num_seqs": 128}
    assert short.truth(config) == whole.truth(config)
    assert short.measure({}, 0).score == pytest.approx(1, rel=0.1)
    # the load takes half as long; what comes before it and after it takes as long as ever
    spared = whole.measure(config, 0).seconds - short.measure(config, 0).seconds
    load = 200 * 512 / (whole.true_run(config).metrics or {})["output_throughput"]
    assert spared == pytest.approx(load / 2, rel=0.15)


def test_an_earlier_search_teaches_what_lies_in_the_space_as_it_was_launched() -> None:
    """Of the L4's parameters the T4 lacks the KV cache's type; what is predicted is predicted of the L4."""
    here, there = (make_problem(f"qwen2.5-0.5b-t4@{card}", Settings()) for card in ("t4", "l4"))
    record = play(there, RIVALS["random"], 6, seed=0)
    earlier = lessons(here, there, record)
    taken = earlier.history.measured
    assert 1 <= len(taken) <= 6
    assert taken[0] == here.defaults()[1]
    assert earlier.history.values[0] == record.trials[0].outcome.values
    assert all("kv_cache_dtype" not in config for config in taken)
    assert any("kv_cache_dtype" in trial.config for trial in record.trials)
    assert earlier.predicted is not None
    assert [said and said.values for said in earlier.predicted[0][:1]] == [there.predicted_reference]
    assert len(earlier.predicted[0]) == len(taken)


def test_what_another_tables_search_teaches_is_tried_only_with_values_that_this_one_has() -> None:
    """The table of 7B has ngram speculation of 1 and of 8 tokens, that of 0.5B all between them, too."""
    problem = make_problem("h200-7b-study", Settings())
    assert problem.allowed({"ngram_tokens": 8, "block_size": 64, "unknown": 3})
    assert not problem.allowed({"ngram_tokens": 5, "block_size": 64})


def test_only_this_projects_sampler_is_taught_and_then_begins_elsewhere() -> None:
    problem = make_problem("crash-half", Settings())
    assert taught_by(RIVALS["random"], "crash-half-cousin", Settings(), 20) is RIVALS["random"]
    taught = taught_by(RIVALS["ours"], "crash-half-cousin", Settings(), 20)
    with_it, without = (play(problem, rival, 6, seed=0) for rival in (taught, RIVALS["ours"]))
    assert [t.config for t in with_it.trials[1:]] != [t.config for t in without.trials[1:]]
    truths = [[trial.truth or 0.0 for trial in each.trials[1:]] for each in (with_it, without)]
    assert np.mean(truths[0]) > np.mean(truths[1])


def test_best_scores_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem = SYNTHETIC["crash-half"]("right")
    found = find_best(problem, "here")
    assert 0.9 * problem.best < found <= problem.best
    assert cache_file().is_file()
    raise_best("here", problem.best, optimum(problem))
    raise_best("here", found, {})
    assert find_best(problem, "here") == problem.best
    assert find_best(problem, "elsewhere") == found


def test_a_best_score_that_is_no_longer_true_is_searched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem = SYNTHETIC["crash-half"]("right")
    raise_best("here", 99.0, optimum(problem))
    assert find_best(problem, "here") <= problem.best
    raise_best("here", problem.best, optimum(problem))
    assert find_best(problem, "here") == problem.best
