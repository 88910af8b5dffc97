"""Measured runs on the roofline: by hand, beside the simulator's own counts, and what has no place."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from records.trials import Provenance, Repeat, ServerFacts, TrialOutcome
from tests.some import some
from tests.unit.engines.simulator.helpers import server
from tuner.engines.simulator.prediction import client_metrics, run_workload
from tuner.engines.simulator.roofline import measured_point, roofline_of
from tuner.workloads.spec import ClosedLoop

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIGURES: dict[str, float | None] = {
    "output_throughput": 1000.0,
    "total_token_throughput": 1500.0,
    "request_throughput": 10.0,
    "mean_ttft_ms": 500.0,
    "mean_e2el_ms": 2500.0,
}


def outcome(figures: dict[str, float | None] = FIGURES, hits: float | None = 0.2) -> TrialOutcome:
    repeats = (Repeat(0, 0, 10, 10, 0, 1.0, figures),)
    facts = ServerFacts(prefix_hit_rate=hits)
    return TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "Tesla T4", {}, "", repeats=repeats, server=facts)


def test_a_point_by_hand() -> None:
    """Qwen2.5-0.5B: 24 layers of width 896 with 14 heads and 2 KV heads of 64, 4,864 wide inside, 151,936 words.

    A layer has 2 x 896² + 2 x 896 x 128 + 3 x 896 x 4,864 = 14,909,440 parameters, all have 357,826,560, and the head
    has 136,134,656. Prompts have 50 tokens, answers 100; 990 tokens a second are decoded by 10 x 2 s = 20 requests in
    49.5 steps; each reads 50 + 50 tokens of 2 x 24 x 2 x 64 x 2 = 12,288 bytes. Of 500 prompt tokens 400 are computed,
    with 0.96 x 500² / 20 = 12,000 pairs, each of 4 x 14 x 64 x 24 = 86,016 FLOP.
    """
    point = measured_point(server(), outcome())
    assert (point.batch, point.context, point.lacking) == (20.0, 100.0, None)
    assert point.roofline is not None
    flops = 2 * 357_826_560 * (990 + 400) + 2 * 136_134_656 * 1000 + 86_016 * (12_000 + 99_000)
    traffic = 2 * (357_826_560 + 136_134_656) * 49.5 + 12_288 * 99_000
    assert point.roofline.flops == pytest.approx(flops)
    assert point.roofline.flops == pytest.approx(1.2766e12, rel=1e-4)
    assert point.roofline.intensity == pytest.approx(flops / traffic)
    assert point.roofline.intensity == pytest.approx(25.47, rel=1e-3)


def test_without_a_prefix_cache_every_prompt_token_is_computed() -> None:
    plain = measured_point(server("--no-enable-prefix-caching"), outcome(hits=None))
    more = 2 * 357_826_560 * 100 + 86_016 * 500  # 100 tokens and 0.04 x 12,500 pairs
    cached = some(measured_point(server(), outcome()).roofline)
    assert some(plain.roofline).flops - cached.flops == pytest.approx(more)


@pytest.mark.parametrize("flags", [(), ("--no-enable-prefix-caching", "--enforce-eager"), ("--max-num-seqs", "8")])
def test_it_is_near_the_simulators_own_counts(flags: tuple[str, ...]) -> None:
    made = server(*flags)
    loop = ClosedLoop(max_concurrency=32, num_prompts=200, input_len=512, output_len=128)
    run = run_workload(made, loop, seed=1)
    metrics = some(client_metrics(loop, run))
    point, exact = measured_point(made, outcome(metrics, hits=0.0)).roofline, roofline_of(run)
    assert point is not None
    assert point.intensity == pytest.approx(exact.intensity, rel=0.15)
    assert point.flops == pytest.approx(exact.flops, rel=0.15)


@pytest.mark.parametrize(
    ("figures", "hits", "lacking"),
    [
        ({**FIGURES, "mean_e2el_ms": None}, 0.2, "mean_e2el_ms not recorded"),
        ({**FIGURES, "request_throughput": None}, None, "request_throughput, prefix_hit_rate not recorded"),
        ({**FIGURES, "mean_e2el_ms": 700.0}, 0.2, "2 requests decode on average, fewer than 3"),
        ({**FIGURES, "output_throughput": 10.0}, 0.2, "its answers have a single token"),
    ],
)
def test_an_absent_figure_has_no_point(figures: dict[str, float | None], hits: float | None, lacking: str) -> None:
    point = measured_point(server(), outcome(figures, hits))
    assert (point.roofline, point.batch, point.lacking) == (None, None, lacking)


def test_speculation_and_a_server_without_facts_have_no_point() -> None:
    words = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}')
    assert measured_point(server(*words), outcome()).lacking == "it checks draft tokens, whose number is not recorded"
    assert measured_point(server(), replace(outcome(), server=None)).lacking == "prefix_hit_rate not recorded"
