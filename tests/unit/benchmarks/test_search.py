"""The benchmarks: searches, and the table of costs."""

import math
from pathlib import Path

import numpy as np
import pytest
from optuna.study import Study
from optuna.trial import TrialState

from benchmarks.overhead import CostFigure, print_figures
from benchmarks.search.play import search as search_module
from benchmarks.search.play.records import PlayedTrial, SearchRecord
from benchmarks.search.play.reporting import make_study
from benchmarks.search.play.search import play
from benchmarks.search.problems.best_known import cache_file, find_best, raise_best
from benchmarks.search.problems.catalogue import ProblemSettings, make_problem
from benchmarks.search.problems.problem import Outcome, Problem, config_key
from benchmarks.search.problems.simulated.problem import SimulatedProblem
from benchmarks.search.problems.simulated.study import find_simulated_study
from benchmarks.search.problems.simulated.world import World
from benchmarks.search.problems.synthetic.formula import FormulaProblem
from benchmarks.search.problems.synthetic.problems import SYNTHETIC, CrashHalf
from benchmarks.search.problems.synthetic.related import RELATED
from benchmarks.search.problems.tables.predictions import flags_of
from benchmarks.search.problems.tables.problem import TableProblem
from benchmarks.search.problems.trials import RandomTrial
from benchmarks.search.report.figures import estimate, mean_differences, score_after, trials_until
from benchmarks.search.report.summary import SearchSummary, hypervolume, summarise_search
from benchmarks.search.samplers import smac
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS, RESIDUAL_NAME
from benchmarks.search.samplers.compared import ComparedSampler
from benchmarks.search.samplers.transfer import source_history, with_source_study
from benchmarks.simulator.rows import h200
from records.trials import Config
from search_spaces import ParameterValue
from search_spaces.parameter import same_value
from tests.some import some
from tests.unit.benchmarks.toy import Toy, scripted


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """Every study that a search makes."""
    made: list[Study] = []

    def recorded(problem: Problem, sampler: ComparedSampler, seed: int) -> Study:
        made.append(make_study(problem, sampler, seed))
        return made[-1]

    monkeypatch.setattr(search_module, "make_study", recorded)
    return made


def test_a_table_row_is_measured_at_most_once() -> None:
    problem = make_problem("h200-b7", ProblemSettings())
    record = play(problem, COMPARED_SAMPLERS["random"], 60, seed=3)
    keys = [config_key(trial.config) for trial in record.trials]
    assert len(set(keys)) == len(keys) == 22
    assert record.exhausted
    assert not record.redrawn


def test_a_table_row_is_nearest_to_itself_and_replaces_the_suggested_parameters(studies: list[Study]) -> None:
    problem = make_problem("h200-b7", ProblemSettings())
    assert isinstance(problem, TableProblem)
    for row in problem.rows:
        assert problem.snap(row.config or problem.defaults()[1], ()) == row.config
    record = play(problem, COMPARED_SAMPLERS["random"], 8, seed=0)
    trials = {trial.user_attrs["config"]: trial for trial in studies[0].trials}
    for played in record.trials[1:]:
        params = trials[config_key(played.config)].params
        assert {name: played.config[name] for name in params} == params


def test_a_search_depends_on_its_seed_only() -> None:
    problem = SYNTHETIC["crash-half"]("right")

    def trials(seed: int) -> list[tuple[str, float | None]]:
        record = play(problem, COMPARED_SAMPLERS["tpe-constrained"], 25, seed, workers=2)
        return [(config_key(trial.config), trial.outcome.score) for trial in record.trials]

    assert trials(1) == trials(1)
    assert trials(1) != trials(2)


def test_four_workers_run_four_trials_side_by_side() -> None:
    compared, sampler = scripted(9, 5, 2, 3, 4, 6, 7, 8, 0)
    record = play(Toy(), compared, 10, seed=0, workers=4)
    assert sampler.running == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    moments = [trial.begun_at for trial in record.trials]
    overlap = [sum(t.begun_at <= moment < t.ended_at for t in record.trials) for moment in moments]
    assert max(overlap) == 4
    ends = [trial.ended_at for trial in record.trials]
    assert ends == sorted(ends)
    assert play(Toy(), scripted(9, 5, 2)[0], 4, seed=0).trials[-1].ended_at > ends[3]


def test_a_compilation_takes_time_once() -> None:
    record = play(Toy(), scripted(3, 5, 2, 4)[0], 5, seed=0)
    assert [trial.ended_at - trial.begun_at for trial in record.trials] == [16, 13, 15, 17, 14]


def test_a_crash_reported_as_fail_has_no_constraint(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 7, crash_report="fail", reads_constraints=False)[0], 3, seed=0)
    assert [trial.state for trial in studies[0].trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]
    assert not any(trial.constraints for trial in studies[0].trials)


def test_a_crash_reported_as_a_constraint_has_no_values(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 7)[0], 3, seed=0)
    last = studies[0].trials[-1]
    assert (last.state, last.values) == (TrialState.PRUNED, None)
    assert last.constraints["failed"] > 0
    assert all(trial.constraints["failed"] == 0 for trial in studies[0].trials[:-1])


def test_a_crash_reported_as_the_worst_has_the_lowest_value(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 2, 7, crash_report="worst")[0], 4, seed=0)
    last = studies[0].trials[-1]
    assert (last.state, last.values) == (TrialState.COMPLETE, [1.0])
    assert last.constraints["failed"] > 0


def test_a_sampler_that_optimises_the_score_gets_its_logarithm(studies: list[Study]) -> None:
    play(Toy(), scripted(5, optimises="score")[0], 2, seed=0)
    assert [trial.values for trial in studies[0].trials] == [[0.0], [pytest.approx(math.log(5))]]


def test_a_forbidden_or_measured_suggestion_is_drawn_again(studies: list[Study]) -> None:
    record = play(Toy(forbidden=(8,)), scripted(5, 8, 5, 3)[0], 3, seed=0)
    assert [trial.config.get("x") for trial in record.trials] == [None, 5, 3]
    assert record.redrawn == 2
    assert [trial.state.name for trial in studies[0].trials] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL", "COMPLETE"]


def test_after_many_redraws_the_next_suggestion_is_measured() -> None:
    record = play(Toy(), scripted(*[5] * 40)[0], 3, seed=0)
    assert [trial.config.get("x") for trial in record.trials] == [None, 5, 5]
    assert record.redrawn == search_module.REDRAWS


def test_the_first_trial_is_the_defaults_with_their_effective_values(studies: list[Study]) -> None:
    record = play(SYNTHETIC["conditional"]("right"), COMPARED_SAMPLERS["random"], 2, seed=0)
    assert record.trials[0].config == {}
    first = studies[0].trials[0].params
    assert first["method"] == "plain"
    assert "draft_depth" not in first


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def formula(name: str, prior: str = "right") -> FormulaProblem:
    problem = make_problem(name, ProblemSettings(prior=prior))
    assert isinstance(problem, FormulaProblem)
    return problem


def simulated(name: str, world: World, prior: str = "right", workload_share: float = 1.0) -> SimulatedProblem:
    return SimulatedProblem(name, find_simulated_study(name, workload_share=workload_share), world, prior)


def optimum(problem: FormulaProblem) -> Config:
    return max(problem.optima(), key=lambda config: problem.true_score(config) or 0.0)


@pytest.mark.parametrize("name", [*SYNTHETIC, *RELATED])
def test_no_random_configuration_is_better_than_the_known_optimum(name: str) -> None:
    problem = make_problem(name, ProblemSettings())
    random = rng()
    scores = [problem.true_score(problem.define(RandomTrial(random))) for _ in range(2000)]
    assert max(score for score in scores if score is not None) <= problem.best * (1 + 1e-12)
    assert problem.best >= (problem.true_score({}) or 0.0)


def test_no_change_of_one_parameter_improves_the_optimum() -> None:
    for name in ("conditional", "crash-half", "infeasible-defaults", "two-objectives", *RELATED):
        problem = formula(name)
        best = optimum(problem)
        assert problem.true_score(best) == problem.best
        random = rng()
        for changed in best:
            given = {key: value for key, value in best.items() if key != changed}
            neighbour = problem.define(RandomTrial(random, given, {changed: best[changed]}))
            assert (problem.true_score(neighbour) or 0.0) <= problem.best * (1 + 1e-12), (name, neighbour)


def test_half_of_crash_half_crashes() -> None:
    random, problem = rng(), CrashHalf()
    crashed = [problem.true_score(problem.define(RandomTrial(random))) is None for _ in range(2000)]
    assert np.mean(crashed) == pytest.approx(0.5, abs=0.05)


def test_infeasible_defaults_have_no_score() -> None:
    assert SYNTHETIC["infeasible-defaults"]("right").true_score({}) is None


def test_a_flat_problem_has_noise_only() -> None:
    random, flat = rng(), SYNTHETIC["flat"]("right")
    assert {flat.true_score(flat.define(RandomTrial(random))) for _ in range(50)} == {1.0}
    measured = [flat.measure({}, seed).score or 0.0 for seed in range(300)]
    assert np.std(np.log(measured)) == pytest.approx(0.03, rel=0.15)


def test_the_method_of_the_optimum_is_the_worst_on_average() -> None:
    random, conditional = rng(), SYNTHETIC["conditional"]("right")
    by_method: dict[ParameterValue, list[float]] = {}
    for _ in range(3000):
        config = conditional.define(RandomTrial(random))
        by_method.setdefault(config["method"], []).append(conditional.true_score(config) or 0.0)
    assert np.mean(by_method["draft"]) == min(np.mean(scores) for scores in by_method.values())


def test_a_wrong_prior_inverts_improvements() -> None:
    problem = formula("conditional-wrong-prior")
    random = rng()
    pairs = []
    for _ in range(60):
        config = problem.define(RandomTrial(random))
        predicted = some(problem.prediction(config))
        if predicted.score is not None:
            pairs.append((problem.true_score(config) or 0.0, predicted.score))
    assert 30 < len(pairs) < 55
    assert all(true * predicted == pytest.approx(1.0) for true, predicted in pairs)
    assert problem.prediction({}) == problem.exact({})
    assert formula("conditional-wrong-prior", "none").prediction({}) is None
    assert formula("conditional").prediction({}) is None


def test_rows_with_failed_requests_are_infeasible() -> None:
    problem = make_problem("h200-b7", ProblemSettings())
    assert isinstance(problem, TableProblem)
    short = [row for row in problem.rows if row.config.get("max_model_len") == 2048]
    assert short
    assert all(problem.true_score(row.config) is None for row in short)
    assert problem.best == pytest.approx(1.336, abs=0.001)


def test_predictions_of_a_table_use_the_flags_of_its_rows() -> None:
    for name in ("h200-a05", "h200-b7"):
        problem = make_problem(name, ProblemSettings())
        assert isinstance(problem, TableProblem)
        rows = {row.args for row in h200() if row.group == name.replace("-", "_")}
        for row in problem.rows:
            config = {key: value for key, value in row.recorded.items() if (key, value) != ("api_server_count", 1)}
            assert row.args in rows
            assert sorted(row.args[2:]) == sorted(flags_of(config))


@pytest.fixture(scope="module")
def served() -> SimulatedProblem:
    return simulated("sim-h200", World())


def test_a_simulated_measurement_is_the_true_score_with_noise(served: SimulatedProblem) -> None:
    config = {"max_num_seqs": 128}
    assert served.measure(config, 1) == served.measure(config, 1)
    scores = [served.measure(config, seed).score or 0.0 for seed in range(200)]
    assert np.mean(np.log(scores)) == pytest.approx(math.log(served.true_score(config) or 0.0), abs=0.01)
    assert np.std(np.log(scores)) == pytest.approx(0.032, rel=0.2)
    assert served.true_score({}) == pytest.approx(1.0)


def test_predictions_are_exact_in_an_unperturbed_world() -> None:
    unperturbed = simulated("sim-h200", World(spread=0.0, choices=0.0))
    config: Config = {"max_num_seqs": 128, "kv_cache_dtype": "fp8"}
    predicted = some(unperturbed.prediction(config))
    assert predicted.score == pytest.approx(unperturbed.true_score(config))
    assert simulated("sim-h200", World(), "none").prediction(config) is None


def test_a_wrong_prior_of_the_simulator_is_the_inverse_of_the_right_one(served: SimulatedProblem) -> None:
    config = {"max_num_seqs": 128}
    wrong_prior = simulated("sim-h200", World(), "wrong")
    wrong, right = wrong_prior.prediction(config), served.prediction(config)
    base = some(served.predicted_reference)
    assert wrong is not None
    assert right is not None
    assert right.values is not None
    assert wrong.values is not None
    for one, other, each in zip(right.values, wrong.values, base, strict=True):
        assert one * other == pytest.approx(each * each)
    assert wrong_prior.prediction({}) == served.prediction({})


def test_a_failed_simulated_start_takes_time() -> None:
    """The weights of a model of 14 billion parameters do not fit an L4."""
    name = "qwen2.5-14b-ada-mixed@l4"
    failed = simulated(name, World()).measure({}, 0)
    assert failed.values is None
    # A start takes 30 s on a host of speed 1, of which 25 s are imports; the L4's host has half of that speed.
    assert failed.seconds == pytest.approx(10)
    unforked = find_simulated_study(name, forked=False)
    assert SimulatedProblem(name, unforked, World()).measure({}, 0).seconds == pytest.approx(60)


def test_a_search_with_a_shorter_workload_is_scored_by_the_whole_one() -> None:
    world = World(choices=0)
    whole, short = simulated("sim-t4", world), simulated("sim-t4", world, workload_share=0.5)
    config = {"max_num_seqs": 128}
    assert short.true_score(config) == whole.true_score(config)
    assert short.measure({}, 0).score == pytest.approx(1, rel=0.1)
    # The benchmark takes half as long; start-up and stop take as long as before.
    saved_s = whole.measure(config, 0).seconds - short.measure(config, 0).seconds
    benchmark_s = 200 * 512 / ((whole.true_trial(config).metrics or {})["output_throughput"] or 0.0)
    assert saved_s == pytest.approx(benchmark_s / 2, rel=0.15)


def test_best_scores_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem = formula("crash-half")
    found = find_best(problem, "here")
    assert 0.9 * problem.best < found <= problem.best
    assert cache_file().is_file()
    raise_best("here", problem.best, optimum(problem))
    raise_best("here", found, {})
    assert find_best(problem, "here") == problem.best
    assert find_best(problem, "elsewhere") == found


def test_a_cached_score_that_changed_is_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem: Problem = formula("crash-half")
    assert isinstance(problem, FormulaProblem)
    raise_best("here", 99.0, optimum(problem))
    assert find_best(problem, "here") <= problem.best
    raise_best("here", problem.best, optimum(problem))
    assert find_best(problem, "here") == problem.best


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
    found = some(estimate([1.0, 2.0, 3.0]))
    assert (found.value, found.low, found.high) == (2.0, 1.0, 3.0)
    assert found.text(1) == "2.0 [1.0, 3.0]"
    assert estimate([]) is None


def test_the_defaults_have_a_hypervolume_of_one() -> None:
    problem = SYNTHETIC["two-objectives"]("right")
    base = some(problem.reference)

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
    score = some(found["score_60"])
    assert [score.value, score.low, score.high] == pytest.approx([0.1, 0.1, 0.1])


OTHERS = [sampler.name for sampler in COMPARED_SAMPLERS.values() if sampler.name != RESIDUAL_NAME]


SEARCHING = [name for name in OTHERS if COMPARED_SAMPLERS[name].applies_to(SYNTHETIC["crash-half"]("right"))]


@pytest.mark.parametrize("name", [name for name in SEARCHING if not COMPARED_SAMPLERS[name].missing_modules])
def test_every_sampler_searches(name: str) -> None:
    sampler = COMPARED_SAMPLERS[name]
    problem = SYNTHETIC["crash-half"]("right")
    record = play(problem, sampler, 14, seed=0, workers=2)
    assert len(record.trials) == 14
    assert all(trial.outcome.feasible == (trial.true_score is not None) for trial in record.trials)


def test_smac_returns_the_values_that_it_is_told() -> None:
    parameters = find_simulated_study("sim-t4").spec.space.parameters
    for parameter in parameters:
        for value in parameter.values or [parameter.spec.low]:
            told = int(value) if parameter.kind == "int" and value is not None else value
            assert same_value(smac._value(parameter, smac._code(parameter, told)), told)
    stepped = {each.name for each in parameters if smac._is_listed(each)}
    assert "gpu_memory_utilization" in stepped


def test_recipes_alone_are_the_list_then_the_winners_together() -> None:
    problem = make_problem("sim-t4-greedy", ProblemSettings(prior="none"))
    assert isinstance(problem, SimulatedProblem)
    recipes = [dict(recipe.config) for recipe in problem.study.spec.recipes]
    record = play(problem, COMPARED_SAMPLERS["recipes-alone"], 60, seed=0)
    configs = [dict(trial.config) for trial in record.trials]
    assert configs[: len(recipes) + 1] == [{}, *recipes]
    assert len(configs) <= len(recipes) + 2
    assert record.exhausted


def test_recipes_come_before_the_first_suggestion() -> None:
    """A budget of ten trials has two recipes, and no place for their combination."""
    problem = make_problem("sim-t4-greedy", ProblemSettings(prior="none"))
    assert isinstance(problem, SimulatedProblem)
    record = play(problem, COMPARED_SAMPLERS[RESIDUAL_NAME], 10, seed=0)
    recipes = [dict(recipe.config) for recipe in problem.study.spec.recipes]
    assert [dict(trial.config) for trial in record.trials[:3]] == [{}, *recipes[:2]]
    assert len(record.trials) == 10


def test_a_source_study_has_the_configurations_that_the_other_space_contains() -> None:
    """The T4 lacks the L4's KV cache type; the predictions of the source study are those for the L4."""
    here, there = (make_problem(f"qwen2.5-0.5b-t4@{card}", ProblemSettings()) for card in ("t4", "l4"))
    record = play(there, COMPARED_SAMPLERS["random"], 6, seed=0)
    source = source_history(here, there, record)
    measured = source.history.measured
    assert 1 <= len(measured) <= 6
    assert measured[0] == here.defaults()[1]
    assert source.history.values[0] == record.trials[0].outcome.values
    assert all("kv_cache_dtype" not in config for config in measured)
    assert any("kv_cache_dtype" in trial.config for trial in record.trials)
    assert source.predicted is not None
    assert [found and found.values for found in source.predicted[0][:1]] == [there.predicted_reference]
    assert len(source.predicted[0]) == len(measured)


def test_a_related_source_study_improves_the_best_of_the_first_suggestions() -> None:
    problem = make_problem("crash-half", ProblemSettings())
    assert (
        with_source_study(COMPARED_SAMPLERS["random"], "crash-half-related", ProblemSettings(), 20)
        is COMPARED_SAMPLERS["random"]
    )
    transfer = with_source_study(COMPARED_SAMPLERS[RESIDUAL_NAME], "crash-half-related", ProblemSettings(), 20)
    warm, cold = (play(problem, sampler, 6, seed=0) for sampler in (transfer, COMPARED_SAMPLERS[RESIDUAL_NAME]))
    assert [t.config for t in warm.trials[1:]] != [t.config for t in cold.trials[1:]]
    scores = [[trial.true_score or 0.0 for trial in each.trials[1:]] for each in (warm, cold)]
    assert max(scores[0]) > max(scores[1])


def test_own_costs_have_targets(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures([CostFigure.over("ask", [1.0, 2.0, 3.0], "ms", 100.0), CostFigure("peak", 5.0, None, "MB", None, 1)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert rows == [["ask,", "ms", "2", "2.9", "≤", "100", "3"], ["peak,", "MB", "5", "1"]]
