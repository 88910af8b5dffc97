"""When a trial is cut short: sums by hand, requests in flight, percentiles, and the error over all looks."""

import math
from dataclasses import replace

import numpy as np
import pytest

from records.metrics import Direction
from records.trials import Cut
from tests.some import some
from tuner.scoring.goals import Objective, parse_slo
from tuner.specs import CutRule
from tuner.trial.cut import ERROR, Sum, TrialWatch
from tuner.workloads.progress import RunProgress
from tuner.workloads.results import RequestRecord, RequestStatus
from tuner.workloads.traffic import Traffic

GOODPUT = Objective("goodput", Direction.MAXIMIZE, 40.0)
RATE, COUNT = 10.0, 100


def traffic(**changes: object) -> Traffic:
    settings = {
        "arrivals": {"process": "constant", "rate": RATE},
        "requests": COUNT,
        "classes": {"chat": {"input": 10, "output": 11}},
        "slo": {"chat": {"ttft_ms": 100}},
    }
    return Traffic.model_validate({**settings, **changes})


def rule(*slos: str, score: float = 0.9) -> CutRule:
    return CutRule(tuple(map(parse_slo, slos)), (GOODPUT,), {"goodput": RATE}, score)


def requests(ttft_s: float, count: int = COUNT, tokens_s: float = 0.01) -> list[RequestRecord]:
    """Return requests that are due every 0.1 s, each answered with 11 tokens."""
    return [
        RequestRecord(
            index,
            "chat",
            RequestStatus.COMPLETED,
            planned_output=11,
            due_s=index / RATE,
            sent_s=index / RATE,
            first_token_s=index / RATE + ttft_s,
            end_s=index / RATE + ttft_s + 10 * tokens_s,
            output_tokens=11,
        )
        for index in range(count)
    ]


WAITING = [replace(each, first_token_s=None, end_s=None) for each in requests(0.0)]
"""The requests without a token."""


def looked(given: CutRule, records: list[RequestRecord], at_s: float, load: Traffic | None = None) -> Cut | None:
    watch = TrialWatch(given, load or traffic(), 1)
    return watch.look(RunProgress(records, watch.slos, watch.users), at_s)


def test_the_evidence_of_a_sum_by_hand() -> None:
    assert Sum(np.array([1.0, 1.0, 1.0]), 2.0, 100, 0).evidence() == math.inf
    # 20 blocks of one request, of which 4 may be 1: the first is 5 times the mean that is left, and the mean bet 0.475
    assert Sum(np.array([1.0]), 4.0, 20, 0).evidence() == pytest.approx(math.log(1 + 0.475 * 4))
    assert Sum(np.array([0.0, 0.0]), 4.0, 20, 0).evidence() == 0.0
    # the first request says nothing of the others, but is one of the four
    assert Sum(np.array([1.0]), 4.0, 20, 1).evidence() == 0.0
    assert Sum(np.array([1.0, 1.0]), 4.0, 20, 1).evidence() == pytest.approx(math.log(1 + 0.475 * (19 / 3 - 1)))


def test_a_sum_that_is_just_allowed_is_seldom_refused_however_often_one_looks() -> None:
    random, refused = np.random.default_rng(7), 0
    for _ in range(1000):
        values = random.permutation(np.repeat([1.0, 0.0], [30, 70]))
        seen = (Sum(values[:count], 30.0, 100, 0) for count in range(5, 100, 5))
        refused += any(each.evidence() > math.log(1 / ERROR) for each in seen)
    assert refused <= 25


def test_a_hopeless_trial_is_cut_as_soon_as_too_many_requests_have_waited_beyond_their_slo() -> None:
    # 9 good requests/s over the 9.9 s until the last is due leave 10 of 100 requests; the eleventh is due at 1.0 s
    assert looked(rule(), WAITING, 1.05) is None
    cut = some(looked(rule(), WAITING, 1.15))
    assert cut.reason == "score at most 0.899, 0.900 needed, after 12 of 100 requests"  # (100 - 11) / 9.9 / 10
    assert (cut.requests, cut.offered, cut.after_s, cut.violations) == (12, 100, 1.15, {})


def test_a_trial_that_can_win_is_not_cut() -> None:
    records = requests(0.05)
    assert all(looked(rule("p99_ttft_ms<60"), records, at_s / 2) is None for at_s in range(20))


def test_a_percentile_is_lost_with_the_requests_above_it() -> None:
    # the stable middle has 80 requests, due from 1.0 to 8.9 s; of their latencies the one in place 79 bounds the p99
    slow = requests(0.01)
    for index in (5, 20):
        slow[index] = replace(slow[index], first_token_s=index / RATE + 0.09)
    assert looked(rule("p99_ttft_ms<50"), slow, 3.0) is None
    slow[30] = replace(slow[30], first_token_s=3.08)
    cut = some(looked(rule("p99_ttft_ms<50"), slow, 3.2))
    assert cut.violations == {"p99_ttft_ms<50": pytest.approx(80 / 50 - 1)}
    assert cut.score_at_most is None


def test_the_tpot_of_a_request_in_flight_has_a_bound() -> None:
    # 10 gaps in at least 2 s: 200 ms each
    slow = [replace(each, end_s=None, output_tokens=None) for each in requests(0.0)]
    assert looked(rule("p50_tpot_ms<20"), slow, 5.9) is not None
    assert looked(rule("p50_tpot_ms<2000"), slow, 5.9) is None


def test_no_bet_is_made_where_arrivals_change() -> None:
    # every second request is bad: certain with the eleventh, and nearly certain before
    records = [replace(each, first_token_s=None, end_s=None) if each.index % 4 else each for each in requests(0.01)]
    few = rule(score=0.5)
    ramp = traffic(arrivals={"process": "ramp", "start_rate": 20, "end_rate": 1}, duration_s=10)
    assert looked(few, records, 6.0) is not None
    assert looked(few, records, 6.0, ramp) is None


def test_the_throughput_of_a_closed_loop_is_bounded_by_its_latencies() -> None:
    # 10 users, 100 requests: a latency of 2 s makes 5 requests/s, and 10 were needed
    load = traffic(arrivals={"process": "closed", "users": 10}, slo={})
    records = [
        replace(each, due_s=None, sent_s=(index // 10) * 2.0, first_token_s=None, end_s=(index // 10) * 2.0 + 2.0)
        for index, each in enumerate(requests(0.0))
    ]
    objective = Objective("request_throughput", Direction.MAXIMIZE, 1.0)
    needed = CutRule((), (objective,), {"request_throughput": RATE}, 0.9)
    assert looked(needed, records, 4.5, load) is None
    cut = some(looked(needed, records, 9.5, load))
    assert cut.score_at_most == 0.9  # the certain bound is still 100 / 9.5 / 10


def test_a_metric_without_a_bound_keeps_a_trial() -> None:
    free = rule()
    free = replace(free, scored=(*free.scored, Objective("quality", Direction.MAXIMIZE, 1.0)))
    assert looked(replace(free, reference={**free.reference, "quality": 1.0}), WAITING, 5.0) is None


def test_a_trial_is_not_cut_when_little_of_it_is_left() -> None:
    assert looked(rule(), requests(0.15), 9.0) is not None
    assert looked(rule(), requests(0.15), 9.6) is None


def test_without_a_feasible_trial_one_that_misses_its_slos_by_more_than_the_nearest_is_cut() -> None:
    nearest = CutRule((parse_slo("p50_ttft_ms<1000"),), (GOODPUT,), {"goodput": RATE}, None, math.log(3))
    # the median of 80 requests is at least the wait of the fortieth: at 8.0 s that of the request that was due at 5.0 s
    assert looked(nearest, WAITING, 7.9) is None
    cut = some(looked(nearest, WAITING, 8.05))
    assert cut.score_at_most is None
    assert cut.violations == {"p50_ttft_ms<1000": pytest.approx(2.05, abs=0.11)}


def test_an_slo_that_asks_for_bad_values_is_no_reason_to_cut() -> None:
    assert looked(rule("p50_ttft_ms>1000", "goodput<1"), requests(0.05), 5.0) is None
