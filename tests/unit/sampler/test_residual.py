"""`ResidualSampler` in plain Optuna studies: optimum, constraints, prior, candidates and reproducibility."""

from __future__ import annotations

import ast
import importlib
import math
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import Trial, TrialState
from threadpoolctl import threadpool_info

from tuner.sampler.acquisition import CandidateSelection, Suggestion
from tuner.sampler.prior import Prediction
from tuner.sampler.residual import ResidualSampler, SelectedTrials

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
    recommended = sampler.recommend(study)
    assert recommended is not None
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
    recommended = recommended_trial(study)
    assert recommended is not None
    assert recommended.params["batch"] <= 100
    assert speed(recommended.params) > 0.8 * 1500 * 100 / 256


def test_an_infinite_value_is_not_recommended() -> None:
    study = new_study(ResidualSampler(space))
    for value in (float("inf"), 900.0, 1200.0):
        trial = study.ask()
        space(trial)
        study.tell(trial, value)
    recommended = recommended_trial(study)
    assert recommended is not None
    assert recommended.number == 2


def test_nothing_is_recommended_where_no_trial_is_feasible() -> None:
    study = new_study(ResidualSampler(space))
    for _ in range(3):
        trial = study.ask()
        trial.set_constraint("tpot", 2.0)
        study.tell(trial, speed(space(trial)))
    assert recommended_trial(study) is None


def exact_prior(params: Any) -> Prediction:
    return Prediction((speed(params),), {})


def inverse_prior(params: Any) -> Prediction:
    return Prediction((1e6 / speed(params),), {})


def test_an_exact_prior_leads_to_the_optimum_at_once() -> None:
    assert run_study(ResidualSampler(space, prior=exact_prior), 3).best_value > 0.98 * 1500


def test_an_inverse_prior_is_corrected() -> None:
    assert run_study(ResidualSampler(space, prior=inverse_prior), 30).best_value > 0.9 * 1500


def test_the_worst_predictions_stay_unattractive_after_one_prediction_was_far_too_high() -> None:
    """The second trial is predicted at 1.25 of the first and measures a quarter; the worst predictions are 1 %."""
    study = new_study(ResidualSampler(space, prior=exact_prior))
    study.enqueue_trial({"method": "plain", "batch": 256, "idle": 0.5})
    predicted = []
    for measured in (1200.0, 300.0, 1200.0):
        trial = study.ask()
        predicted.append(speed(space(trial)))
        study.tell(trial, measured)
    assert predicted[1] == pytest.approx(1500)
    assert predicted[2] > 1200 / math.e


def test_workers_that_start_together_get_the_best_predictions() -> None:
    study = new_study(ResidualSampler(space, prior=exact_prior))
    configs = [space(study.ask()) for _ in range(4)]
    assert all(speed(config) > 0.9 * 1500 for config in configs)
    assert len({tuple(config.items()) for config in configs}) == 4


def test_workers_that_start_together_get_configurations_that_differ() -> None:
    """All of the best tenth are within a per cent or so; `idle` changes nothing, and the depth little."""
    study = new_study(ResidualSampler(space, prior=exact_prior, seed=1))
    configs = [space(study.ask()) for _ in range(3)]
    assert speed(configs[0]) > 0.98 * 1500
    idle = sorted(config["idle"] for config in configs)
    assert min(idle[1] - idle[0], idle[2] - idle[1]) > 0.1


def test_pending_and_discarded_configurations_are_not_proposed_again() -> None:
    def narrow(trial: Any) -> dict[str, Any]:
        return {"kind": trial.suggest_categorical("kind", ["a", "b", "c", "d"])}

    study = new_study(ResidualSampler(narrow, startup_trials=1, seed=3))
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

    sampler = ResidualSampler(kinds, startup_trials=1, seed=3)
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


def test_a_suggestion_uses_one_blas_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    suggest = CandidateSelection.suggest

    def counted(self: CandidateSelection) -> Suggestion:
        counts.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return suggest(self)

    monkeypatch.setattr(CandidateSelection, "suggest", counted)
    run_study(ResidualSampler(space, startup_trials=2), 4)
    assert counts
    assert set(counts) == {1}


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


@pytest.mark.parametrize("prior", [None, exact_prior])
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


PAGE = (ROOT / "docs" / "design" / "sampler-constants.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
ROWS = [
    (module, name, value)
    for module, text in SECTIONS
    for name, value in re.findall(r"^\| `([\w.]+)` \| (.*?) \|", text, re.MULTILINE)
]


def constants_of(path: Path) -> set[str]:
    """Return the public constants of a module whose value is a number or a tuple of numbers."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                targets = target.elts if isinstance(target, ast.Tuple) else [target]
                literal = isinstance(node.value, ast.Constant | ast.Tuple)
                names |= {each.id for each in targets if isinstance(each, ast.Name) and literal}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(("module", "name", "value"), ROWS, ids=[f"{module}.{name}" for module, name, _ in ROWS])
def test_the_page_has_the_value_of_the_code(module: str, name: str, value: str) -> None:
    assert attrgetter(name)(importlib.import_module(module)) == ast.literal_eval(value)


@pytest.mark.parametrize("path", sorted((ROOT / "tuner" / "sampler").rglob("*.py")), ids=lambda path: path.stem)
def test_every_constant_of_the_sampler_is_on_the_page(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert constants_of(path) <= {name for known, name, _ in ROWS if known == module}
