"""The best known score of a problem without a formula: a long seeded search whose result is cached on disk."""

import json
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.trials import RandomTrial
from records.trials import Config
from search_spaces import ParameterValue
from tuner.engines.simulator.parameters import parameters_digest

EVALUATIONS = 1500
RANDOM_EVALUATIONS = 400
"""The first evaluations of a long search are random; the others change one of the best configurations."""
ELITE = 12
"""Number of best configurations that are changed; the better half is picked three times in four."""
MOST_CHANGES = 3
"""The most parameters that one change affects."""


@dataclass(frozen=True)
class EliteConfig:
    """A configuration of the long search with its true score and its suggested parameters."""

    score: float
    config: Config
    params: dict[str, ParameterValue]


def cache_file() -> Path:
    """Return the file that caches best scores."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "tuner" / "search-best.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        entries: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries


def _key(identity: str) -> str:
    """Return the cache key: new simulator parameters make every cached score stale."""
    return f"{identity} {parameters_digest()}"


def _write(file: Path, entries: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as new:
        json.dump(entries, new, indent=1)
    os.replace(new.name, file)


def _forget(identity: str) -> None:
    file = cache_file()
    _write(file, {key: value for key, value in _read(file).items() if key != _key(identity)})


def raise_best(identity: str, score: float, config: Config) -> None:
    """Cache a configuration if its score is better than the cached one."""
    file, key = cache_file(), _key(identity)
    entries = _read(file)
    if score <= entries.get(key, {}).get("score", 0.0):
        return
    entries[key] = {"score": score, "config": dict(config)}
    _write(file, entries)


def find_best(problem: Problem, identity: str) -> float:
    """Return the best known score; a long search finds it if the cache has none.

    The cached configuration is scored again, because a change of the simulator's code can change its score.
    """
    cached = _read(cache_file()).get(_key(identity))
    if cached is not None:
        score = problem.true_score(cached["config"])
        if score is not None and math.isclose(score, cached["score"], rel_tol=1e-9):
            return float(cached["score"])
        _forget(identity)
    best = long_search(problem, EVALUATIONS)
    raise_best(identity, best.score, best.config)
    return best.score


def long_search(problem: Problem, evaluations: int) -> EliteConfig:
    """Return the best of many configurations, first random ones, then changes of the best.

    Raises:
        RuntimeError: if none of the configurations is feasible.
    """
    random = np.random.default_rng(0)
    elite: list[EliteConfig] = []
    start, _ = problem.defaults()
    score = problem.true_score(start)
    if score is not None:
        elite.append(EliteConfig(score, start, {}))
    for number in range(evaluations):
        trial = RandomTrial(random) if number < RANDOM_EVALUATIONS or not elite else _changed(random, elite)
        config = problem.define(trial)
        if not problem.allowed(config):
            continue
        score = problem.true_score(config)
        if score is None or any(score == other.score for other in elite):
            continue
        elite.append(EliteConfig(score, config, trial.params))
        elite.sort(key=lambda each: -each.score)
        del elite[ELITE:]
    if not elite:
        raise RuntimeError(f"{problem.name}: none of {evaluations} configurations is feasible")
    return elite[0]


def _changed(random: np.random.Generator, elite: list[EliteConfig]) -> RandomTrial:
    """Return a trial that changes a few parameters of one of the best configurations.

    Half of the trials draw changed numbers near the old ones, the other half from the whole range.
    """
    reach = len(elite) if random.integers(2) else max(1, len(elite) // 2)
    params = elite[int(random.integers(reach))].params
    names = sorted(params)
    if not names:
        return RandomTrial(random)
    count = min(len(names), int(random.integers(1, MOST_CHANGES + 1)))
    changed = set(random.choice(names, size=count, replace=False).tolist())
    given = {name: value for name, value in params.items() if name not in changed}
    near = {name: params[name] for name in changed} if random.integers(2) else {}
    return RandomTrial(random, given, near)
