"""`ResidualSampler` as a public class: the example, plain studies, and independence of the rest of the project."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from tuner.sampler.residual import ResidualSampler

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
