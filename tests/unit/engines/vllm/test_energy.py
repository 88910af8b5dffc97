"""The energy of a benchmark from a counter's readings, worked out by hand."""

import pytest

from records.metrics import ENERGY
from records.trials import Repeat
from tuner.engines.server import metrics
from tuner.engines.server.metrics import EnergyMeter, energy_of_window, with_energy

BENCHMARK = [(0.0, 1000.0), (2.0, 1200.0), (4.0, 2600.0), (6.0, 4000.0), (8.0, 4200.0)]
"""A GPU takes 100 W until 2 s, 700 W until 6 s, then 100 W."""


def repeat(duration: float | None, rate: float | None) -> Repeat:
    return Repeat(0, 0, 10, 10, 0, duration, {"output_throughput": rate})


def test_the_window_with_the_most_energy_is_the_benchmark() -> None:
    assert energy_of_window(BENCHMARK, 4.0) == pytest.approx(2800.0)
    assert energy_of_window(BENCHMARK, 3.0) == pytest.approx(2100.0)
    assert energy_of_window(BENCHMARK, 5.0) == pytest.approx(2900.0)


def test_a_window_longer_than_the_readings_has_all_their_energy() -> None:
    assert energy_of_window(BENCHMARK, 9.0) == pytest.approx(3200.0)


@pytest.mark.parametrize("readings", [[], [(0.0, 5.0)], [(0.0, 5.0), (1.0, 4.0)]])
def test_without_two_readings_that_increase_there_is_no_energy(readings: list[tuple[float, float]]) -> None:
    assert energy_of_window(readings, 1.0) is None


def test_a_token_takes_the_energy_divided_by_the_output_tokens() -> None:
    # 2,800 J in 4 s for 350 tok/s, so 1,400 tokens: 2 J each
    assert with_energy(repeat(4.0, 350.0), BENCHMARK).metrics[ENERGY] == pytest.approx(2.0)


@pytest.mark.parametrize(("duration", "rate"), [(None, 350.0), (4.0, None), (4.0, 0.0)])
def test_without_tokens_or_duration_the_energy_of_a_token_is_absent(duration: float | None, rate: float | None) -> None:
    assert with_energy(repeat(duration, rate), BENCHMARK).metrics[ENERGY] is None


def test_without_a_counter_the_energy_of_a_token_is_absent() -> None:
    assert with_energy(repeat(4.0, 350.0), []).metrics == {"output_throughput": 350.0, ENERGY: None}


def test_the_meter_reads_its_gpu_at_both_ends_and_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ENERGY_PERIOD_S", 0.001)
    asked: list[int] = []

    def read(index: int) -> float:
        asked.append(index)
        return 10.0 * len(asked)

    with EnergyMeter([3], read) as meter:
        while len(meter.readings) < 3:
            pass
    assert {*asked} == {3}
    assert [value for _, value in meter.readings] == [10.0 * (place + 1) for place in range(len(asked))]
    assert len(meter.readings) >= 4


@pytest.mark.parametrize("indices", [[], [0], [0, 1]])
def test_a_meter_without_gpu_or_counter_reads_nothing(indices: list[int]) -> None:
    with EnergyMeter(indices, lambda _: None) as meter:
        pass
    assert meter.readings == []


def test_a_reading_is_the_sum_of_all_gpus() -> None:
    with EnergyMeter([0, 1], lambda index: [100.0, 7.0][index]) as meter:
        pass
    assert {value for _, value in meter.readings} == {107.0}


def test_a_sum_without_one_of_the_counters_is_no_reading() -> None:
    with EnergyMeter([0, 1], lambda index: [100.0, None][index]) as meter:
        pass
    assert meter.readings == []
