"""The figures of load generators, and the fake server's run of one."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.loadgen.figures import (
    COMPLETED,
    NO_RECORD,
    GeneratorFigures,
    dispersion,
    fault_figures,
    gap_variation,
    lateness,
    repeated_gaps,
    steady_figures,
)
from benchmarks.loadgen.records import (
    GeneratorRecord,
    GeneratorResult,
    GeneratorRun,
    RequestStream,
    SecondsArray,
    least_delay,
    shifted,
)
from benchmarks.loadgen.table import print_generators

RATE = 200.0


def poisson_times(seed: int, count: int = 10_000) -> SecondsArray:
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / RATE, count))


def run_of(arrivals: SecondsArray, ended: bool = True) -> GeneratorRun:
    return GeneratorRun(exit_code=0, ended=ended, wall_s=60.0, first_s=1.0, cpu_s=5.0, arrivals=arrivals)


def result_of(times: SecondsArray, errors: dict[int, str] | None = None) -> GeneratorResult:
    records = [
        GeneratorRecord(float(at), float(at) + 0.02, 8, (errors or {}).get(number)) for number, at in enumerate(times)
    ]
    return GeneratorResult(records, times, schedule_recorded=True)


def test_poisson_arrivals_have_a_dispersion_and_a_variation_of_one() -> None:
    times = poisson_times(0)
    for gaps in (1, 10, 100):
        found = dispersion(times, gaps)
        assert abs(found.value - 1.0) <= 3 * found.error
    assert gap_variation(times) == pytest.approx(1.0, abs=0.05)
    assert dispersion(np.arange(1000) / RATE, 10).value < 0.1


def test_four_workers_with_one_random_stream_repeat_each_gap_three_times() -> None:
    gaps = np.diff(poisson_times(0, 2500))
    assert repeated_gaps(np.cumsum(np.repeat(gaps, 4))) == pytest.approx(3.0, abs=0.1)
    assert repeated_gaps(poisson_times(1)) == pytest.approx(0.0, abs=0.1)


def test_lateness_is_in_ms_and_leaves_early_requests_out() -> None:
    scheduled = np.linspace(1.0, 100.0, 100)
    late = lateness(np.concatenate([[0.5], scheduled + 0.002]), scheduled, early=1)
    assert [late.p50_ms, late.max_ms] == pytest.approx([2.0, 2.0])


def test_the_least_delay_sets_the_offset_of_two_clocks() -> None:
    sent = np.array([1.0, 2.0, 3.0])
    assert least_delay(sent + 100 + np.array([0.3, 0.1, 0.2]), sent) == pytest.approx(100.1)
    moved = shifted([GeneratorRecord(1.0, None, 0, None)], 100.0)
    assert (moved[0].sent_s, moved[0].first_token_s) == (101.0, None)


def test_faults_are_found_in_the_records_of_their_arrivals() -> None:
    times = np.arange(10) / 20
    result = result_of(times, {2: "reset\nby peer"})
    found = fault_figures(result, run_of(times + 0.001), 10, {"2": "reset", "4": "short"})
    assert found.outcomes == {"2 reset": "by peer", "4 short": COMPLETED}
    assert (found.cut_off, found.cut_off_with_first_token) == (1, 1)
    missing = GeneratorResult(result.records[:2] + result.records[3:], times, schedule_recorded=True)
    assert fault_figures(missing, run_of(times), 10, {"2": "reset"}).outcomes == {"2 reset": NO_RECORD}


def test_the_table_has_a_caption_and_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    times = poisson_times(0)
    figures = GeneratorFigures("tuner", "1.0", 0.5, steady_figures(result_of(times), run_of(times + 0.001)))
    figures.faulty.append(fault_figures(result_of(times[:10]), run_of(times[:10]), 10, {"2": "short"}))
    steady = RequestStream(requests=10_000, rate=RATE, poisson=True, output_tokens=8, timeout_s=30.0)
    faulty = RequestStream(requests=10, rate=20.0, poisson=False, output_tokens=8, timeout_s=10.0)
    print_generators([figures], steady, faulty, cores=2)
    output = capsys.readouterr().out
    assert "on 2 cores: n = 10,000 requests" in output
    assert "| 10,000 offered: arrived / recorded | 10000 / 10000: met |" in output
    assert "| arrived late, p50, p99, max, ms | 1.0, 1.0, 1.0: met |" in output
    assert "|   requests with a record | 10 of 10: met |" in output
