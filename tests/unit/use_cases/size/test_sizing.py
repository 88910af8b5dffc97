"""Which shapes are predicted, and what is said about the workload."""

import pytest

from search_spaces import hardware_named
from tests.unit.use_cases.size.test_page import SIZING, TWO, shape
from tuner.scoring.goals import parse_slo
from tuner.use_cases.size.shapes import ONE_GPU, Shape
from tuner.use_cases.size.sizing import LEAST_SHARE, Sized, _notes, _Work
from tuner.workloads.traffic import Traffic

FOUR = Shape("tensor parallel 4", 4, ("--tensor-parallel-size", "4"))


def sized(form: Shape, held: float | None) -> Sized:
    return shape("l4", form, held, 0.5, 50.0)


@pytest.mark.parametrize(
    ("found", "gpus", "enough"),
    [
        ([sized(ONE_GPU, 50.0)], 1, False),  # 120 / 50: three servers
        ([sized(ONE_GPU, 120.0)], 1, True),  # two, the fewest with one that may fail
        ([sized(ONE_GPU, 12.0), sized(TWO, 17.0)], 2, False),  # 8.5 for each GPU, more than two thirds of 12
        ([sized(ONE_GPU, 12.0), sized(TWO, 15.0)], 2, True),  # 7.5
        ([sized(ONE_GPU, None), sized(TWO, None)], 2, False),  # four GPUs may hold the model
        ([sized(ONE_GPU, None), sized(TWO, 3.0), sized(FOUR, 5.0)], 4, False),  # 1.25 of 1.5
    ],
)
def test_larger_servers_are_left_out_where_they_only_cost_more(found: list[Sized], gpus: int, enough: bool) -> None:
    work = _Work(SIZING, hardware_named("l4"), None)
    assert pytest.approx(2 / 3) == LEAST_SHARE
    assert work._is_enough(found, gpus) is enough


def traffic(slo: dict[str, float], **more: object) -> Traffic:
    arrivals, classes = {"process": "poisson", "rate": 1}, {"a": {"input": 9, "output": 9}}
    return Traffic.model_validate({"arrivals": arrivals, "requests": 9, "classes": classes, "slo": {"a": slo}, **more})


def test_what_is_left_out_of_the_workload_is_said() -> None:
    bound = (parse_slo("a.p95_ttft_ms<1000"),)
    assert _notes(traffic({"p95_ttft_ms": 1000}), bound) == []
    assert _notes(traffic({"tpot_ms": 50, "goodput_share": 0.95}), bound) == []
    assert _notes(traffic({"tpot_ms": 50, "session_goodput_share": 0.95}), bound) == []
    assert [line.partition(":")[0] for line in _notes(traffic({"tpot_ms": 50}), bound)] == ["a"]
    limited = _notes(traffic({"p95_ttft_ms": 1000}, max_in_flight=8), bound)
    assert limited == ["max_in_flight 8 is left out: it limits the client, whatever the number of servers"]
