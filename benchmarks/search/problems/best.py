"""The best that is known of a problem without a formula: a long seeded search, remembered in a file of the user's."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.problems.problem import Config, Drawn, Problem
from search_spaces import ParameterValue
from tuner.engines.simulator.parameters import PARAMETERS_FILE

EVALUATIONS = 1500
DRAWN = 400
"""Of the evaluations, how many are drawn at random before the best of them are changed a little."""
ELITE = 12
"""Configurations that are changed; the better half is picked twice as often."""


def cache_file() -> Path:
    """Return where best scores are kept."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "tuner" / "search-best.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _key(identity: str) -> str:
    digest = hashlib.sha256(PARAMETERS_FILE.read_bytes()).hexdigest()[:12]
    return f"{identity} {digest}"


def _write(file: Path, known: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as new:
        json.dump(known, new, indent=1)
    os.replace(new.name, file)


def _forget(identity: str) -> None:
    file = cache_file()
    _write(file, {key: value for key, value in _read(file).items() if key != _key(identity)})


def raise_best(identity: str, score: float, config: Config) -> None:
    """Remember a configuration if it is better than what is remembered."""
    file, key = cache_file(), _key(identity)
    known = _read(file)
    if score <= known.get(key, {}).get("score", 0.0):
        return
    known[key] = {"score": score, "config": dict(config)}
    _write(file, known)


def find_best(problem: Problem, identity: str) -> float:
    """Return the best score that is known, after a long search where nothing is.

    What is remembered has to score the same today: the simulator may have learned that it cannot run.
    """
    known = _read(cache_file()).get(_key(identity))
    if known is not None:
        today = problem.truth(known["config"])
        if today is not None and math.isclose(today, known["score"], rel_tol=1e-9):
            return float(known["score"])
        _forget(identity)
    score, config = long_search(problem, EVALUATIONS)
    raise_best(identity, score, config)
    return score


def long_search(problem: Problem, evaluations: int, seed: int = 0) -> tuple[float, Config]:
    """Return the best of many configurations: drawn ones, and changes of the best, one to three values at a time."""
    random = np.random.default_rng(seed)
    pool: list[tuple[float, Config, dict[str, ParameterValue]]] = []
    start, _ = problem.defaults()
    truth = problem.truth(start)
    if truth is not None:
        pool.append((truth, start, {}))
    for number in range(evaluations):
        trial = Drawn(random) if number < DRAWN or not pool else _changed(random, pool)
        config = problem.define(trial)
        if not problem.allowed(config):
            continue
        truth = problem.truth(config)
        if truth is None or any(truth == other for other, *_ in pool):
            continue
        pool.append((truth, config, trial.params))
        pool.sort(key=lambda each: -each[0])
        del pool[ELITE:]
    if not pool:
        raise RuntimeError(f"{problem.name}: none of {evaluations} configurations is feasible")
    return pool[0][0], pool[0][1]


def _changed(random: np.random.Generator, pool: list[tuple[float, Config, dict[str, ParameterValue]]]) -> Drawn:
    reach = len(pool) if random.integers(2) else max(1, len(pool) // 2)
    params = pool[int(random.integers(reach))][2]
    names = sorted(params)
    if not names:
        return Drawn(random)
    lost = set(random.choice(names, size=min(len(names), int(random.integers(1, 4))), replace=False).tolist())
    given = {name: value for name, value in params.items() if name not in lost}
    near = {name: params[name] for name in lost} if random.integers(2) else {}
    return Drawn(random, given, near)
