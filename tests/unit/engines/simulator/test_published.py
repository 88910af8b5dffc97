"""The simulator against published and measured runs: values, order, and the direction of effects."""

import itertools
from functools import cache

import numpy as np
import pytest

from benchmarks.simulator.rows import Row, h200, predict, published
from search_spaces import hardware_named, known_models
from tests.unit.engines.simulator.helpers import PACKAGES
from tuner.engines.simulator.client import workload_client
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.serve_config import resolve_serve_config
from tuner.workloads.presets import load_preset
from tuner.workloads.results import RequestRecord

NOISE = 0.048
"""Relative spread of three published runs of one configuration."""

ROWS = {row.id: row for row in published()}
T4_AND_L4 = [name for name in ROWS if not name.startswith("awq")]


@cache
def throughput(name: str) -> float:
    value = predict(ROWS[name])["output_throughput"]
    assert value is not None
    return value


def measured(name: str) -> float:
    return ROWS[name].metrics["output_throughput"]


@pytest.mark.parametrize("name", T4_AND_L4)
def test_throughput_is_within_20_percent(name: str) -> None:
    assert throughput(name) == pytest.approx(measured(name), rel=0.2)


def test_the_median_error_is_at_most_10_percent() -> None:
    errors = [abs(throughput(name) / measured(name) - 1) for name in T4_AND_L4]
    assert sorted(errors)[len(errors) // 2] <= 0.1


def test_the_run_left_out_of_the_fit_is_within_15_percent() -> None:
    assert not ROWS["t4-C"].fit
    assert throughput("t4-C") == pytest.approx(measured("t4-C"), rel=0.15)


@pytest.mark.parametrize("name", ["awq-original", "awq-max-num-seqs-8"])
def test_awq_on_the_t4_is_as_published_within_its_30_seconds(name: str) -> None:
    assert throughput(name) == pytest.approx(measured(name), rel=0.1)


def test_eight_sequences_complete_more_answers_within_30_seconds() -> None:
    assert measured("awq-max-num-seqs-8") / measured("awq-original") == pytest.approx(1.225, abs=0.001)
    assert 1.1 < throughput("awq-max-num-seqs-8") / throughput("awq-original") < 1.4


CONTEST = ["t4-C", "t4-B", "t4-graphs-greedy", "t4-suffix-greedy"]


def test_predictions_order_the_contests_runs() -> None:
    predicted = [throughput(name) for name in CONTEST]
    assert predicted == sorted(predicted)


def same_study(one: str, other: str) -> bool:
    a, b = ROWS[one], ROWS[other]
    return (a.group, a.workload, a.model) == (b.group, b.workload, b.model)


PAIRS = [
    (slow, fast)
    for slow, fast in itertools.permutations(T4_AND_L4, 2)
    if same_study(slow, fast) and measured(fast) > measured(slow) * (1 + NOISE)
]


@pytest.mark.parametrize(("slow", "fast"), PAIRS)
def test_predictions_order_pairs_of_runs(slow: str, fast: str) -> None:
    assert throughput(slow) < throughput(fast)


def ranks(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def test_predictions_order_the_h200_tables() -> None:
    rows: list[Row] = h200()
    predictions = [predict(row) for row in rows]
    for metric, least in (("output_throughput", 0.9), ("p99_tpot_ms", 0.85), ("p99_ttft_ms", 0.85)):
        predicted = [value for each in predictions if (value := each[metric]) is not None]
        assert len(predicted) == len(rows)
        order = np.corrcoef(ranks([row.metrics[metric] for row in rows]), ranks(predicted))
        assert order[0, 1] >= least, metric


ADA = "--max-model-len 8192 --gpu-memory-utilization 0.90"
WHOLE, NO_CACHE = "--no-enable-chunked-prefill", "--no-enable-prefix-caching"
CHUNKS = "--max-num-batched-tokens 2048"
COLUMNS = {
    "baseline": f"{NO_CACHE} {WHOLE}",
    "prefix": WHOLE,
    "chunked": f"{NO_CACHE} {CHUNKS}",
    "awq": f"{NO_CACHE} {WHOLE} --quantization awq",
    "stack": f"{NO_CACHE} {CHUNKS} --quantization awq",
    "admission": f"{NO_CACHE} {WHOLE} --max-num-seqs 20",
    "prefix+chunked": CHUNKS,
}
CLASSES = ("siso", "silo", "liso", "lilo")


def meets_slo(record: RequestRecord) -> bool:
    """Return whether a request meets its SLO as the study counted it, from the time of sending."""
    if not record.completed:
        return False
    if record.name in ("siso", "liso"):
        return record.latencies_ms(since_sent=True)["ttft"] < 5000
    return bool(record.gaps_s) and float(np.percentile(record.gaps_s, 95)) < 0.250


@cache
def column(name: str) -> dict[str, float]:
    """Return the share of requests within SLO by class, and the share that completed."""
    arguments = f"{ADA} {COLUMNS[name]}".split()
    model = "Qwen/Qwen2.5-14B-Instruct" + ("-AWQ" if "awq" in arguments else "")
    config = resolve_serve_config(
        arguments, {}, known_models()[model], hardware_named("rtx6000ada"), (0, 15, 1), PACKAGES
    )
    server = ConfiguredServer(config, parameters_of("rtx6000ada"))
    workload = load_preset("qwen2.5-14b-ada-mixed").workload
    run = server.run(workload_client(workload, 1000, config.prefix_caching, 0.0015), 1, noise=False)  # type: ignore[arg-type]
    records = run.records()
    shares = {"completed": sum(record.completed for record in records) / len(records)}
    for kind in CLASSES:
        of_kind = [record for record in records if record.name == kind]
        shares[kind] = sum(map(meets_slo, of_kind)) / len(of_kind)
    return shares


def test_only_prefix_caching_is_above_40_percent_in_every_class() -> None:
    above = {name for name in COLUMNS if all(column(name)[kind] > 0.4 for kind in CLASSES)}
    assert above == {"prefix", "prefix+chunked"}


def test_prefix_caching_helps_every_class_and_completion() -> None:
    base, prefix = column("baseline"), column("prefix")
    assert all(prefix[kind] > base[kind] + 0.1 for kind in (*CLASSES, "completed"))


def test_a_cap_on_running_requests_helps_long_answers_only() -> None:
    base, capped = column("baseline"), column("admission")
    assert capped["silo"] > base["silo"]
    assert capped["lilo"] > base["lilo"]
    assert max(capped["siso"], capped["liso"]) < 0.15


def test_chunked_prefill_alone_helps_long_answers_only() -> None:
    base, chunked = column("baseline"), column("chunked")
    assert chunked["silo"] > base["silo"] + 0.05
    assert chunked["lilo"] > base["lilo"] + 0.05
    assert all(abs(chunked[kind] - base[kind]) < 0.05 for kind in ("siso", "liso"))


def test_four_bit_weights_make_long_answers_miss_their_slo() -> None:
    assert max(column("awq")[kind] for kind in ("silo", "lilo")) < 0.05
    assert max(column("stack")[kind] for kind in ("silo", "lilo")) < 0.05


def test_chunked_prefill_adds_little_to_prefix_caching() -> None:
    assert all(abs(column("prefix+chunked")[kind] - column("prefix")[kind]) < 0.1 for kind in CLASSES)
