"""The comparison of a GPU's energy counter with its power, on a clock of its own."""

from __future__ import annotations

import pytest

from benchmarks.energy import PERIOD_S, compare, integrate


class Gpu:
    """A GPU with 100 W, then 300 W from 1 s on; its counter is exact."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def power_w(self, index: int) -> float:
        return 100.0 if self.now < 1 else 300.0

    def energy_j(self, index: int) -> float:
        return 5000.0 + 100.0 * min(self.now, 1.0) + 300.0 * max(self.now - 1.0, 0.0)


def test_power_is_integrated_by_trapezoids() -> None:
    # 2 s from 100 to 300 W, then 1 s at 300 W
    assert integrate([(0.0, 100.0), (2.0, 300.0), (3.0, 300.0)]) == pytest.approx(700.0)
    assert integrate([(0.0, 100.0)]) == 0.0


def test_counter_and_power_agree() -> None:
    gpu = Gpu()
    found = compare(0, 3.0, gpu.energy_j, gpu.power_w, lambda: gpu.now, gpu.sleep)
    assert found.counter_j == pytest.approx(700.0, rel=0.03)
    assert found.ratio == pytest.approx(1.0, abs=0.02)
    assert found.samples == pytest.approx(3.0 / PERIOD_S + 1, abs=1)
    assert found.mean_w == pytest.approx(700 / 3, rel=0.03)


def test_a_gpu_without_a_counter_is_refused() -> None:
    gpu = Gpu()
    with pytest.raises(SystemExit, match="GPU 0 has no energy counter"):
        compare(0, 1.0, lambda _: None, gpu.power_w, lambda: gpu.now, gpu.sleep)
