"""The residual sampler: suggestions, candidates, predictions in the background, and importance."""

import ast
import importlib
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from threadpoolctl import threadpool_info

from records.trials import Failure
from tests.some import some
from tests.unit.study.conftest import SPACE, Bench
from tuner.sampler.acquisition import (
    PREDICTED_NEXT,
    CandidateSelection,
    SingleChanges,
    Suggestion,
    TrustRegion,
    local_search,
    trust_radius,
)
from tuner.sampler.candidates import CandidateSpace, count_conditional_parameters
from tuner.sampler.encoding import EncodedConfigurations, Encoder, Params, Vector
from tuner.sampler.flag_effects import LEAST_SCORED, parameter_importance
from tuner.sampler.history import ObjectiveScale
from tuner.sampler.prior import Prediction, Prior, PriorCache
from tuner.sampler.residual import ResidualSampler, SelectedTrials
from tuner.sampler.surrogate import single_blas_thread
from tuner.settings.study import RESIDUAL
from tuner.specs import TrialSpec
from tuner.study import learned_prior

optuna.logging.set_verbosity(optuna.logging.ERROR)


def space(trial: Any) -> dict[str, Any]:
    config = {"method": trial.suggest_categorical("method", ["plain", "draft"])}
    if config["method"] == "draft":
        config["depth"] = trial.suggest_int("depth", 1, 16)
    config["batch"] = trial.suggest_int("batch", 8, 1024, log=True)
    config["idle"] = trial.suggest_float("idle", 0.0, 1.0)
    return config


def speed(config: dict[str, Any]) -> float:
    """Return at most 1500: for drafting at depth 6 with a batch of at least 256."""
    gain = 1.5 - 0.02 * (config["depth"] - 6) ** 2 if config["method"] == "draft" else 1.2
    return float(1000 * gain * min(config["batch"], 256) / 256)


def new_study(sampler: ResidualSampler) -> optuna.Study:
    return optuna.create_study(direction="maximize", sampler=sampler)


def run_study(sampler: ResidualSampler, trials: int) -> optuna.Study:
    study = new_study(sampler)
    study.optimize(lambda trial: speed(space(trial)), n_trials=trials)
    return study


def test_the_best_method_depth_and_batch_are_reached() -> None:
    best = run_study(ResidualSampler(space, seed=1), 30).best_trial
    assert speed(best.params) > 0.95 * 1500


def test_the_search_space_is_optional() -> None:
    assert run_study(ResidualSampler(seed=1), 30).best_value > 1200


@pytest.mark.parametrize(("weights", "best"), [([8, 1], 256), ([1, 8], 8)])
def test_several_objectives_are_weighted(weights: list[float], best: int) -> None:
    """Speed grows with the batch up to 256; doubling the batch doubles the other objective."""
    sampler = ResidualSampler(space, weights=weights, seed=1)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    study.optimize(lambda trial: (speed(config := space(trial)), float(config["batch"])), n_trials=25)
    recommended = some(sampler.recommend(study))
    assert best / 1.5 < recommended.params["batch"] < best * 1.5


def test_a_parameter_may_appear_after_the_first_predictions() -> None:
    """Without the space, a conditional parameter is unknown until a trial has it."""
    calls = [True]

    def branching(trial: Any) -> float:
        config = {"batch": trial.suggest_int("batch", 8, 1024, log=True), "method": "plain"}
        if len(calls) > 4:
            config["depth"] = trial.suggest_int("depth", 1, 16)
            config["method"] = "draft"
        calls.append(True)
        return speed(config)

    def prior(params: Any) -> Prediction:
        return Prediction((speed({"method": "draft" if "depth" in params else "plain", **params}),), {})

    study = new_study(ResidualSampler(prior=prior, seed=2))
    study.optimize(branching, n_trials=12)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert study.best_trial.params["batch"] > 200


def test_configurations_similar_to_failed_ones_are_avoided() -> None:
    study = new_study(ResidualSampler(space, seed=2))

    def objective(trial: Trial) -> float:
        config = space(trial)
        if config["batch"] > 64:
            trial.set_constraint("failed", 10.0)
            raise optuna.TrialPruned
        return speed(config)

    study.optimize(objective, n_trials=30)
    late = study.trials[20:]
    assert sum(trial.params["batch"] > 64 for trial in late) <= 3
    assert study.best_value > 0.9 * 1500 * 64 / 256


def recommended_trial(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    assert isinstance(study.sampler, ResidualSampler)
    return study.sampler.recommend(study)


def test_the_recommended_trial_satisfies_its_constraint() -> None:
    study = new_study(ResidualSampler(space, seed=2))
    for _ in range(30):
        trial = study.ask()
        config = space(trial)
        trial.set_constraint("tpot", config["batch"] / 100 - 1)
        study.tell(trial, speed(config))
    recommended = some(recommended_trial(study))
    assert recommended.params["batch"] <= 100
    assert speed(recommended.params) > 0.8 * 1500 * 100 / 256


@pytest.mark.parametrize(
    ("constraint", "number"), [(-1.0, 2), (2.0, None)], ids=["an infinite value does not count", "none is feasible"]
)
def test_the_best_feasible_trial_is_recommended(constraint: float, number: int | None) -> None:
    study = new_study(ResidualSampler(space))
    for value in (float("inf"), 900.0, 1200.0):
        trial = study.ask()
        space(trial)
        trial.set_constraint("tpot", constraint)
        study.tell(trial, value)
    recommended = recommended_trial(study)
    assert (recommended and recommended.number) == number


def exact_prior(params: Any) -> Prediction:
    return Prediction((speed(params),), {})


def inverse_prior(params: Any) -> Prediction:
    return Prediction((1e6 / speed(params),), {})


@pytest.mark.parametrize(("prior", "trials", "share"), [(exact_prior, 3, 0.98), (inverse_prior, 30, 0.9)])
def test_an_exact_prior_leads_to_the_optimum_at_once_and_an_inverse_one_is_corrected(
    prior: Prior, trials: int, share: float
) -> None:
    assert run_study(ResidualSampler(space, prior=prior), trials).best_value > share * 1500


@pytest.mark.parametrize("predictions", [80, 100, 200, 300])
def test_bad_predictions_stay_unattractive_after_one_was_far_too_high(predictions: int) -> None:
    """The second trial is predicted at 1.25 of the first and measures a quarter; the worst predictions are 1 %."""
    study = new_study(ResidualSampler(space, prior=exact_prior, initial_predictions=predictions))
    study.enqueue_trial({"method": "plain", "batch": 256, "idle": 0.5})
    predicted = []
    for measured in (1200.0, 300.0, 1200.0):
        trial = study.ask()
        predicted.append(speed(space(trial)))
        study.tell(trial, measured)
    assert predicted[1] == pytest.approx(1500)
    assert predicted[2] > 0.9 * 1200


def test_workers_that_start_together_get_the_best_predictions_which_differ() -> None:
    """All of the best tenth are within a per cent or so; `idle` changes nothing, and the depth little."""
    study = new_study(ResidualSampler(space, prior=exact_prior, seed=1))
    configs = [space(study.ask()) for _ in range(4)]
    assert speed(configs[0]) > 0.98 * 1500
    assert all(speed(config) > 0.9 * 1500 for config in configs)
    assert len({tuple(config.items()) for config in configs}) == 4
    idle = sorted(config["idle"] for config in configs[:3])
    assert min(idle[1] - idle[0], idle[2] - idle[1]) > 0.1


def test_pending_and_discarded_configurations_are_not_proposed_again() -> None:
    def narrow(trial: Any) -> dict[str, Any]:
        return {"kind": trial.suggest_categorical("kind", ["a", "b", "c", "d"])}

    study = new_study(ResidualSampler(narrow, seed=3))
    first = study.ask()
    study.tell(first, 1.0 if narrow(first) else 0.0)
    pending, discarded = study.ask(), study.ask()
    kinds = [narrow(trial)["kind"] for trial in (pending, discarded)]
    study.tell(discarded, state=TrialState.FAIL)
    assert len({first.params["kind"], *kinds, narrow(study.ask())["kind"]}) == 4


def test_hidden_trials_are_counted_and_not_proposed_again() -> None:
    """Every fifth suggestion tries a rare choice, whatever part of the history the study contains."""

    def kinds(trial: Any) -> str:
        return str(trial.suggest_categorical("kind", ["a", "b", "c", "d", "e", "f", "g"]))

    sampler = ResidualSampler(kinds, seed=3)
    study = new_study(sampler)
    for kind in "abc":
        study.enqueue_trial({"kind": kind})
        first = study.ask()
        study.tell(first, 1.0 if kinds(first) == "a" else 0.5)
    study.sampler = sampler.with_seed(4, [{"kind": "d"}, {"kind": "e"}, {"kind": "f"}])
    assert kinds(study.ask()) == "g"
    history = study.sampler._read(study.get_trials(deepcopy=False))
    assert history.n_finished == 6
    assert len(history.tried) == 4


def test_a_suggestion_without_a_trial_is_the_same_as_that_of_ask() -> None:
    sampler = ResidualSampler(space, seed=1)
    study = run_study(sampler, 10)
    view = SelectedTrials(study.get_trials(deepcopy=False), study.directions)
    suggestion = sampler.with_seed(1).suggest(view)
    assert space(study.ask()) == suggestion.params
    assert suggestion == sampler.last_suggestion
    assert sampler.with_seed(1).last_suggestion is None


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_a_suggestion_uses_one_blas_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: set[int] = set()
    suggest = CandidateSelection.suggest

    def counted(self: CandidateSelection) -> Suggestion:
        counts.update(blas_threads())
        return suggest(self)

    monkeypatch.setattr(CandidateSelection, "suggest", counted)
    run_study(ResidualSampler(space), 4)
    assert counts == {1}


def test_no_blas_thread_is_added_when_another_suggestion_ends() -> None:
    """Suggestions in two threads of a service: the end of one must not lift the limit of the other."""
    entered, ended = threading.Event(), threading.Event()

    def second() -> set[int]:
        with single_blas_thread():
            entered.set()
            ended.wait(10)
            return blas_threads()

    with ThreadPoolExecutor(1) as pool:
        with single_blas_thread():
            counts = pool.submit(second)
            entered.wait(0.1)  # in vain: one thread is inside at a time
        ended.set()
        assert counts.result() == {1}


def test_only_allowed_configurations_are_proposed() -> None:
    study = new_study(ResidualSampler(space, is_allowed=lambda params: params["batch"] % 2 == 0, seed=4))

    def objective(trial: Trial) -> float:
        config = space(trial)
        assert config["batch"] % 2 == 0
        return speed(config)

    study.optimize(objective, n_trials=14)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


REPEAT = """
from tests.unit.sampler.test_residual import ResidualSampler, exact_prior, run_study, space
study = run_study(ResidualSampler(space, seed=5, prior=%s), 14)
print([sorted(trial.params.items()) for trial in study.trials])
"""


@pytest.mark.parametrize("prior", [pytest.param(None, marks=pytest.mark.slow), exact_prior])
def test_a_seed_gives_the_same_trials_in_another_process(prior: Any) -> None:
    script = REPEAT % (prior.__name__ if prior else None)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    here = run_study(ResidualSampler(space, seed=5, prior=prior), 14)
    assert run.stdout.strip() == str([sorted(trial.params.items()) for trial in here.trials])


ROOT = Path(__file__).parents[3]
OURS = ("tuner", "storage", "search_spaces", "dashboards", "tests", "benchmarks")


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", sorted((ROOT / "tuner" / "sampler").rglob("*.py")), ids=lambda path: path.stem)
def test_the_sampler_imports_nothing_else_of_this_project(path: Path) -> None:
    """The confidence level of all intervals is the exception: a module without imports of this project."""
    ours = {name for name in imported_modules(path) if name.split(".")[0] in OURS} - {"tuner.confidence"}
    assert {name for name in ours if name != "tuner.sampler" and not name.startswith("tuner.sampler.")} == set()


def test_a_plain_study_needs_only_a_seed() -> None:
    study = optuna.create_study(sampler=ResidualSampler(seed=0))
    study.optimize(lambda trial: (trial.suggest_float("x", -5.0, 5.0) - 2.0) ** 2, n_trials=20)
    assert study.best_value < 0.1


def test_the_example_reaches_the_constrained_optimum() -> None:
    """The optimum is 0.74: x = 0.5, y = 0 and method b with depth 6."""
    command = [sys.executable, str(ROOT / "docs" / "examples" / "residual_sampler.py")]
    line = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "'method': 'b'" in line
    loss = float(line.split("loss ")[1].split()[0])
    assert 0.74 <= loss < 0.8


PAGE = (ROOT / "docs" / "design" / "sampler.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)\.([\w.]+)` \| ([^|]+) \|", PAGE, re.MULTILINE)


def test_the_page_has_the_values_of_the_code() -> None:
    assert len(ROWS) == 8
    for module, name, value in ROWS:
        assert attrgetter(name)(importlib.import_module(f"tuner.sampler.{module}")) == ast.literal_eval(value), name


def define(trial: Any) -> None:
    if trial.suggest_categorical("method", ["plain", "draft"]) == "draft":
        trial.suggest_int("depth", 1, 16)
        trial.suggest_categorical("tree", [False, True])
    trial.suggest_int("batch", 8, 1024, log=True)


@pytest.fixture
def candidate_space() -> CandidateSpace:
    drawn = CandidateSpace(define)
    for seed in range(10):
        drawn.draw(np.random.default_rng(seed))
    return drawn


def test_parameters_that_exist_only_beside_a_choice_are_counted_for_it() -> None:
    configs = [
        {"method": "plain", "batch": 8},
        {"method": "draft", "depth": 3, "tree": True, "batch": 8},
        {"method": "draft", "depth": 5, "tree": False, "batch": 64},
        {"method": "lookup", "size": 16, "batch": 64},
    ]
    counts = count_conditional_parameters(configs)
    assert counts[("method", "draft")] == 2
    assert counts[("method", "lookup")] >= 1
    assert counts[("method", "plain")] == 0
    assert counts[("batch", 8)] == 0


def test_a_space_without_conditions_has_no_conditional_parameters() -> None:
    assert not count_conditional_parameters([{"a": 1}, {"a": 2}])
    assert not count_conditional_parameters([])


def test_a_single_change_is_encoded_like_the_changed_configuration(candidate_space: CandidateSpace) -> None:
    encoder = Encoder(candidate_space.distributions)
    config = {"method": "draft", "depth": 4, "tree": True, "batch": 64}
    changes = SingleChanges(encoder, np.random.default_rng(0), {"depth": 5})
    before = encoder.encode([config])
    after = changes.apply(before.rows[0], before.effects[0])
    for index, (name, value) in enumerate(changes.changes):
        expected = encoder.encode([{**config, name: value}])
        assert after.rows[index] == pytest.approx(expected.rows[0])
        assert after.effects[index] == pytest.approx(expected.effects[0])


def test_local_search_changes_one_parameter_at_a_time_and_respects_rules(candidate_space: CandidateSpace) -> None:
    encoder = Encoder(candidate_space.distributions)
    batch = encoder.names.index("batch")

    def acquisition(inputs: EncodedConfigurations) -> Vector:
        """Return the position of the batch: the larger, the better."""
        return np.asarray(inputs.rows[:, encoder.columns.rows == batch][:, 0])

    ruled = CandidateSpace(define, lambda config: config["batch"] <= 512)
    ruled.update(candidate_space.distributions, [])
    start = {"method": "plain", "batch": 16}
    reached = local_search(ruled, encoder, acquisition, [start], np.random.default_rng(0), {})
    assert reached
    assert all(config["method"] == "plain" and config["batch"] <= 512 for config in reached)
    assert reached[-1]["batch"] > 100


@pytest.mark.parametrize(
    ("scores", "radius"),
    [
        ([0.0], 1),  # the defaults are no success
        ([0.0, 0.04], 1),  # within the noise
        ([0.0, 0.1, 0.2], 3),
        ([0.0, 0.1, 0.2, None, 0.1, 0.2], 2),
        ([0.0, None, None, None, None, None, None], 1),
        ([0.0] * 8, 2),
        ([0.0] * 17, 3),
    ],
)
def test_successes_widen_the_trust_region_and_failures_narrow_it(scores: list[float | None], radius: int) -> None:
    assert trust_radius(scores) == radius


def test_changes_that_bring_nothing_are_left_out_where_a_prior_predicts_them() -> None:
    """`useful` gains a half; eight others do nothing: without a cost, suggestions set four of these."""
    idle = [f"idle_{place}" for place in range(8)]

    def measured(config: Params) -> float:
        return 150.0 if config["useful"] else 100.0

    def flags(trial: optuna.trial.BaseTrial) -> Params:
        return {name: trial.suggest_categorical(name, (False, True)) for name in ("useful", *idle)}

    sampler = ResidualSampler(flags, prior=lambda config: Prediction((measured(config),), {}), seed=3)
    study = new_study(sampler)
    study.enqueue_trial(dict.fromkeys(("useful", *idle), False))
    study.optimize(lambda trial: measured(flags(trial)), n_trials=13)
    suggested = [trial.params for trial in study.trials[1:]]
    assert sum(params["useful"] for params in suggested) >= 9
    assert np.mean([sum(params[name] for name in idle) for params in suggested]) < 3.0


def test_the_trust_region_counts_changes_but_not_conditional_parameters() -> None:
    """Batch is logarithmic from 8 to 1024, seven doublings: one doubling is a change, four are two, seven are three."""
    known: dict[str, BaseDistribution] = {
        "method": CategoricalDistribution(("plain", "draft")),
        "depth": IntDistribution(1, 16),
        "batch": IntDistribution(8, 1024, log=True),
    }
    encoder = Encoder(known)
    centre = {"method": "plain", "batch": 8}
    near = [centre, {"method": "draft", "depth": 9, "batch": 8}, {"method": "plain", "batch": 16}]
    far = [{"method": "draft", "depth": 1, "batch": 16}, {**centre, "batch": 128}, {**centre, "batch": 1024}]
    excess = TrustRegion(encoder, centre, 1).excess(encoder.encode([*near, *far]))
    assert excess.tolist() == [0, 0, 0, 1, 1, 2]


def test_local_search_ends_where_no_change_is_better(candidate_space: CandidateSpace) -> None:
    start = {"method": "plain", "batch": 16}
    reached = local_search(
        candidate_space,
        Encoder(candidate_space.distributions),
        lambda inputs: np.zeros(len(inputs)),
        [start],
        np.random.default_rng(0),
        {},
    )
    assert reached == []


MAXIMIZE = [StudyDirection.MAXIMIZE]
Key = frozenset[tuple[str, Any]]


def recording_prior(predicted: list[Key]) -> Any:
    def prior(params: Any) -> Prediction:
        predicted.append(frozenset(params.items()))
        return exact_prior(params)

    return prior


def compute_predictions(sampler: ResidualSampler) -> None:
    sampler.start_background_predictions(MAXIMIZE)
    sampler.wait_for_predictions()


def test_a_suggestion_computes_no_prediction_and_queues_its_best_candidates() -> None:
    predicted: list[Key] = []
    sampler = ResidualSampler(space, prior=recording_prior(predicted), initial_predictions=30, seed=1)
    study = new_study(sampler)
    compute_predictions(sampler)
    before = len(predicted)
    assert before == 30
    for number in range(24):
        compute_predictions(sampler)
        prepared = len(predicted)
        assert prepared - before <= PREDICTED_NEXT + 1
        before = prepared
        trial = study.ask()
        config = space(trial)
        assert len(predicted) == prepared
        # Every fifth suggestion tries a rare choice, whose prediction may be missing.
        assert frozenset(config.items()) in predicted or number % 5 == 0
        study.tell(trial, speed(config))
    assert len(predicted) == len(set(predicted))
    assert len(predicted) > 24 * PREDICTED_NEXT / 2


def test_the_forest_is_imported_with_the_first_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sklearn.ensemble", raising=False)
    compute_predictions(ResidualSampler(space, prior=exact_prior, initial_predictions=5, seed=1))
    assert "sklearn.ensemble" in sys.modules


def test_trials_are_the_same_with_and_without_background_predictions() -> None:
    plain = run_study(ResidualSampler(space, prior=exact_prior, initial_predictions=30, seed=5), 14)
    sampler = ResidualSampler(space, prior=exact_prior, initial_predictions=30, seed=5)
    study = new_study(sampler)
    for _ in range(14):
        compute_predictions(sampler)
        trial = study.ask()
        study.tell(trial, speed(space(trial)))
    assert [trial.params for trial in study.trials] == [trial.params for trial in plain.trials]


def test_without_a_prior_no_thread_is_started() -> None:
    sampler = ResidualSampler(space)
    sampler.start_background_predictions(MAXIMIZE, [{"method": "plain"}])
    assert sampler._background._thread is None
    sampler.wait_for_predictions()


def test_configurations_that_break_a_rule_are_not_predicted() -> None:
    predicted: list[Key] = []
    sampler = ResidualSampler(
        space,
        prior=recording_prior(predicted),
        initial_predictions=30,
        is_allowed=lambda params: params["batch"] % 2 == 0,
        seed=3,
    )
    assert {trial.state for trial in run_study(sampler, 12).trials} == {TrialState.COMPLETE}
    assert len(predicted) > 60
    assert all(dict(params)["batch"] % 2 == 0 for params in predicted)


def test_a_configuration_that_is_queued_twice_is_predicted_once() -> None:
    predicted: list[Key] = []
    sampler = ResidualSampler(space, prior=recording_prior(predicted), initial_predictions=0)
    first, second = {"method": "plain", "batch": 8, "idle": 0.5}, {"method": "plain", "batch": 16, "idle": 0.5}
    sampler.start_background_predictions(MAXIMIZE, [first, second, first])
    sampler.wait_for_predictions()
    assert predicted == [frozenset(first.items()), frozenset(second.items())]
    compute_predictions(sampler)
    assert len(predicted) == 2


def test_a_suggestion_considers_the_first_200_and_the_latest_800_of_1300_predictions() -> None:
    cache = PriorCache(lambda params: Prediction((float(params["batch"]),), {}))
    encoder = Encoder({"batch": IntDistribution(1, 1301)})
    scales = [ObjectiveScale(1.0, 1.0, 1.0, False, 1.0)]
    for batch in range(1, 301):
        cache.predict({"batch": batch})
    assert [each["batch"] for each in cache.considered] == list(range(1, 301))  # each of them once
    for batch in range(301, 1001):
        cache.predict({"batch": batch})
    assert [each["batch"] for each in cache.considered] == list(range(1, 1001))
    assert len(cache.encode_considered(encoder)) == 1000
    for batch in range(1001, 1301):
        cache.predict({"batch": batch})
    expected = [*range(1, 201), *range(501, 1301)]
    assert [each["batch"] for each in cache.considered] == expected
    # Gains are relative to 1; the position of 1 in 1 to 1301 is 0, that of 1301 would be 1.
    assert cache.considered_means(scales, [])[:, 0].tolist() == [batch - 1 for batch in expected]
    encoded = cache.encode_considered(encoder)
    assert (1300 * encoded.rows[:, 0] + 1).round().tolist() == expected
    assert len(encoded.effects) == 1000
    assert len(cache.configurations) == 1300


def peak_at_16(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    seqs = int(str(spec.config.get("max_num_seqs", 2048)))
    return {"success_rate": 1.0, "p99_tpot_ms": 10.0, "output_throughput": 1500.0 - 20.0 * min(abs(seqs - 16), 25)}


def configs_of_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch, prior: Prior, slots: int = 1
) -> list[dict[str, Any]]:
    """Return the configurations of a study of 14 trials."""
    folder.mkdir()
    file = folder / "two.yaml"
    file.write_text(SPACE.replace("high: 64", "high: 4096"))
    monkeypatch.setattr(learned_prior, "simulator_prior", lambda spec, engine: prior)
    bench = Bench(folder, file)
    bench.run(peak_at_16, trials=14, slots=slots, sampler=RESIDUAL, confirm_rounds=0)
    return [dict(record.config) for record in bench.records()]


@pytest.mark.parametrize("slots", [1, 3])
def test_a_study_computes_predictions_in_the_background_and_reaches_the_optimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    """The predictions are right about the one parameter that matters; their level is a third too low."""
    in_background: list[bool] = []

    def prior(params: Params) -> Prediction:
        in_background.append(threading.current_thread() is not threading.main_thread())
        distance = min(abs(int(params["max_num_seqs"]) - 16), 25)
        return Prediction((1000.0 - 13.0 * distance, 10.0), {"p99_tpot_ms<50": -0.8, "success_rate>=1": 0.0})

    configs = configs_of_study(tmp_path / "study", monkeypatch, prior, slots)
    assert len(configs) == 14
    assert configs[0] == {}
    assert any(12 <= int(config["max_num_seqs"]) <= 20 for config in configs[1:4])
    assert any(in_background)  # the rest is computed by whoever waits for it


def test_with_one_worker_a_study_repeats_however_long_its_predictions_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry = threading.Event()

    def prior(params: Params) -> Prediction:
        hurry.wait(0.005)  # The stub engine's trials take no time, so most predictions are left to the suggestions.
        return Prediction((1000.0 + 0.01 * int(params["max_num_seqs"]), 10.0), {})

    slow = configs_of_study(tmp_path / "slow", monkeypatch, prior)
    hurry.set()
    assert configs_of_study(tmp_path / "fast", monkeypatch, prior) == slow


RANGES: dict[str, BaseDistribution] = {
    "strong": FloatDistribution(0.0, 1.0),
    "idle": FloatDistribution(0.0, 1.0),
}


def trials(count: int) -> list[FrozenTrial]:
    """Return trials whose score depends on `strong` alone."""
    generator = np.random.default_rng(1)
    found = []
    for _ in range(count):
        params = {name: float(generator.uniform()) for name in RANGES}
        made = optuna.trial.create_trial(params=params, distributions=RANGES, value=0.0)
        made.set_user_attr("score", float(np.exp(params["strong"])))
        found.append(made)
    return found


def test_the_parameter_that_decides_the_score_explains_its_variance() -> None:
    found = parameter_importance(trials(60))
    assert list(found) == ["strong", "idle"]
    mean, low, high = found["strong"]
    assert low <= mean <= high
    assert mean > 0.9
    assert sum(share for share, _, _ in found.values()) == pytest.approx(1.0)


def test_few_trials_and_equal_scores_say_nothing() -> None:
    assert parameter_importance(trials(LEAST_SCORED - 1)) == {}
    same = trials(20)
    for each in same:
        each.set_user_attr("score", 1.0)
    assert parameter_importance(same) == {}


def test_trials_without_a_score_do_not_count() -> None:
    failed = optuna.trial.create_trial(
        state=optuna.trial.TrialState.FAIL, params={"c": "x"}, distributions={"c": CategoricalDistribution(["x", "y"])}
    )
    assert list(parameter_importance([*trials(30), failed])) == ["strong", "idle"]
