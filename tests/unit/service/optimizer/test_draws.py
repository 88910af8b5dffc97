"""Random configurations, and the front of measured trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metrics import Direction
from tests.unit.service.optimizer.api import SPACE
from tuner.scoring.objectives import Objective
from tuner.service.optimizer.draws import MOST_KNOWN, Draws, NoConfiguration, random_config
from tuner.service.optimizer.front import Best, best
from tuner.service.optimizer.settings import OptimizerSettings, make_spec, read_space

LOSS = Objective("loss", Direction.MINIMIZE, 1.0)
SPEED = Objective("speed", Direction.MAXIMIZE, 1.0)


def settings(parameters: Mapping[str, Any], rules: Any = (), seed: int = 0) -> OptimizerSettings:
    return OptimizerSettings(read_space({"parameters": parameters, "rules": list(rules)}), (LOSS,), "random", seed)


def values(parameter: Mapping[str, Any], count: int) -> list[Any]:
    made = settings({"x": parameter})
    return [random_config(made, number)["x"] for number in range(count)]


def test_a_configuration_depends_on_seed_and_number_only() -> None:
    one, other = (OptimizerSettings(read_space(SPACE), (LOSS,), "random", seed) for seed in (1, 2))
    first = [random_config(one, number) for number in range(5)]
    assert [random_config(one, number) for number in reversed(range(5))] == first[::-1]
    assert first != [random_config(other, number) for number in range(5)]


def test_numbers_are_uniform_over_their_range_or_its_logarithm() -> None:
    assert Counter(values({"type": "int", "low": 1, "high": 7, "step": 3}, 300)).keys() == {1, 4, 7}
    assert set(values({"type": "float", "low": 0.1, "high": 0.3, "step": 0.1}, 100)) == {0.1, 0.2, 0.3}
    even = values({"type": "float", "low": 10.0, "high": 20.0}, 2000)
    assert min(even) >= 10
    assert max(even) <= 20
    assert sum(even) / 2000 == pytest.approx(15, abs=0.3)
    logarithmic = values({"type": "int", "low": 1, "high": 1024, "log": True}, 2000)
    assert (min(logarithmic), max(logarithmic)) == (1, 1009)
    assert sum(value <= 32 for value in logarithmic) / 2000 == pytest.approx(0.5 + 0.05, abs=0.06)
    assert Counter(values({"type": "bool"}, 400))[True] == pytest.approx(200, abs=50)


def test_a_space_without_a_configuration_is_an_error() -> None:
    rules = [{"name": "all", "forbid": "x >= 1", "why": "no"}]
    with pytest.raises(NoConfiguration, match="the rules exclude 1000 of 1000"):
        random_config(settings({"x": {"type": "int", "low": 1, "high": 9}}, rules), 0)


def test_settings_are_kept_for_a_limited_number_of_optimizations() -> None:
    draws = Draws()
    spec = make_spec({"parameters": {"x": {"type": "bool"}}}, [LOSS], "tpe", 0)
    for number in range(MOST_KNOWN + 2):
        draws._settings[number] = draws._settings.get(0) or _learned(draws, spec)
    draws.forget()
    assert [draws.knows(number) for number in (0, 1, 2, MOST_KNOWN + 1)] == [False, False, True, True]
    assert draws.draw(2, 0) is None
    assert draws.objectives(2) == ["loss"]


def _learned(draws: Draws, spec: Mapping[str, Any]) -> OptimizerSettings:
    draws.learn(0, spec)
    return draws.settings(0)


def test_an_infeasible_trial_is_never_the_best() -> None:
    trials = [(0, {"loss": 1.0}, {"memory": 0.1}), (1, {"loss": 3.0}, {"memory": 0.0}), (2, {"loss": 3.0}, {})]
    assert best(trials, [LOSS]) == Best(1, None, (1, 2))
    assert best(trials[:1], [LOSS]) == Best(None, None, ())


def test_weights_choose_on_the_front() -> None:
    points = ((4.0, 1.0), (1.0, 0.5), (8.0, 3.0))
    trials: list[Any] = [(number, {"loss": loss, "speed": speed}, {}) for number, (loss, speed) in enumerate(points)]
    found = best(trials, [LOSS, SPEED])
    assert (found.number, found.front) == (1, (0, 1, 2))
    assert found.score == pytest.approx(math.sqrt(2))
    heavy = Objective("speed", Direction.MAXIMIZE, 9.0)
    assert best(trials, [LOSS, heavy]).number == 2
    negative: list[Any] = [(0, {"loss": -4.0, "speed": -1.0}, {})]
    assert best(negative, [LOSS, SPEED]) == Best(None, None, (0,))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)), max_size=30))
def test_the_front_is_what_no_other_trial_beats(points: list[tuple[int, int, int]]) -> None:
    names = ("a", "b", "c")
    objectives = [Objective(name, Direction.MINIMIZE, 1.0) for name in names]
    trials: list[Any] = [
        (number, dict(zip(names, map(float, point), strict=True)), {}) for number, point in enumerate(points)
    ]

    def beats(other: tuple[int, ...], mine: tuple[int, ...]) -> bool:
        return other != mine and all(a <= b for a, b in zip(other, mine, strict=True))

    expected = tuple(n for n, mine in enumerate(points) if not any(beats(other, mine) for other in points))
    assert best(trials, objectives).front == expected
