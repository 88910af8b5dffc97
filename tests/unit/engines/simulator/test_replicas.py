"""Several queues on one clock: copies of the model, several servers, and servers that share a GPU."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.bench_serve import BenchServeWorkload, bench_serve_client
from search_spaces import hardware_named, known_models
from tests.unit.engines.simulator.helpers import ARGUMENTS, GREEDY, PACKAGES, SMALL, SUFFIX
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.metrics import SimulatedRun
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform, build_server, client_metrics, run_workload
from tuner.engines.simulator.sequence import Step
from tuner.engines.simulator.step_time import COMMUNICATION, OTHER_SERVERS, StepTime
from tuner.workloads.presets import load_preset
from tuner.workloads.results import RequestStatus
from tuner.workloads.traffic import Traffic

BURST = BenchServeWorkload(num_prompts=32, max_concurrency=16, input_len=100, output_len=40)
HALF = BenchServeWorkload(num_prompts=16, max_concurrency=8, input_len=100, output_len=40)


def servers(
    *arguments: str, gpus: int = 1, instances: int = 1, card: str = "t4", model: str = SMALL
) -> ConfiguredServer:
    version = (0, 15, 1) if card == "t4" else (0, 25, 1)
    site = Platform(hardware_named(card), parameters_of(card), version, PACKAGES, gpus)
    return build_server(site, arguments, {}, known_models()[model], instances)


def run(made: ConfiguredServer, workload: BenchServeWorkload, fast_forward: bool = True) -> SimulatedRun:
    client = bench_serve_client(workload, 0.0)
    return made.run(client, workload.seed, noise=False, limit_s=1000.0, fast_forward=fast_forward)


@pytest.mark.parametrize("arguments", [(), ("--no-async-scheduling",), ("--enforce-eager",)])
@pytest.mark.parametrize("by_data_parallelism", [True, False])
def test_two_copies_on_two_gpus_are_two_servers_with_half_of_the_load_each(
    arguments: tuple[str, ...], by_data_parallelism: bool
) -> None:
    one = servers(*arguments)
    two = servers("-dp", "2", *arguments, gpus=2) if by_data_parallelism else servers(*arguments, gpus=2, instances=2)
    alone, both = run(one, HALF), run(two, BURST)
    single, double = alone.bench_metrics((50, 99)), both.bench_metrics((50, 99))
    for name in ("output_throughput", "total_token_throughput", "request_throughput"):
        assert double[name] == pytest.approx(2 * (single[name] or 0.0))
    for name in ("mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "median_itl_ms"):
        assert double[name] == pytest.approx(single[name])
    # A percentile of twice as many equal values is interpolated elsewhere
    for name in ("p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms"):
        assert double[name] == pytest.approx(single[name], rel=0.005)
    assert both.trace.busy_s == pytest.approx(2 * alone.trace.busy_s)
    assert both.flops == pytest.approx(2 * alone.flops)
    assert (one.gpus, two.gpus) == (1, 2)


@settings(max_examples=25, deadline=None)
@given(
    arguments=ARGUMENTS,
    instances=st.integers(2, 3),
    gpus=st.integers(1, 3),
    users=st.integers(1, 12),
    rate=st.one_of(st.none(), st.floats(1, 100)),
)
def test_every_request_completes_on_one_of_several_servers(
    arguments: tuple[str, ...], instances: int, gpus: int, users: int, rate: float | None
) -> None:
    workload = BenchServeWorkload(12, users, 120, 24, range_ratio=0.5, rate=rate)
    made = servers(*arguments, "--max-model-len", "1024", gpus=gpus, instances=instances)
    result = run(made, workload)
    for request in result.requests:
        assert request.status is RequestStatus.COMPLETED
        spans = request.segments
        assert sum(n if made.config.speculation else n - first for first, n in spans) == request.prompt.output
        assert request.sent_s is not None
        assert request.first_s is not None
        assert request.end_s is not None
        assert request.sent_s < request.first_s <= request.end_s
        last = spans[-1][0] if made.config.speculation else spans[-1][1] - 1
        assert result.received_s[last] == request.end_s  # its steps are those of its own server


@settings(max_examples=15, deadline=None)
@given(arguments=ARGUMENTS, gpus=st.integers(1, 2), users=st.integers(1, 10))
def test_fast_forward_gives_identical_results(arguments: tuple[str, ...], gpus: int, users: int) -> None:
    workload = BenchServeWorkload(12, users, 120, 24, range_ratio=0.5)

    def ends(fast_forward: bool) -> list[float | None]:
        made = servers(*arguments, "--max-model-len", "1024", gpus=gpus, instances=2)
        return [request.end_s for request in run(made, workload, fast_forward).requests]

    assert ends(True) == pytest.approx(ends(False), rel=1e-12)


def test_a_request_goes_to_the_server_with_the_fewest() -> None:
    made = servers(gpus=3, instances=3)
    result = run(made, BenchServeWorkload(num_prompts=10, max_concurrency=10, input_len=100, output_len=40))
    # Ten requests at once: 4, 3 and 3. The steps of each server follow those of the one before.
    assert len({request.segments[0][0] for request in result.requests}) >= 3
    bounds = [
        index for index in range(1, len(result.received_s)) if result.received_s[index] < result.received_s[index - 1]
    ]
    assert len(bounds) == 2
    counts = Counter(sum(request.segments[0][0] >= bound for bound in bounds) for request in result.requests)
    assert sorted(counts.values()) == [3, 3, 4]


def test_shared_prefixes_are_cached_by_each_server_for_itself() -> None:
    traffic = load_preset("chat").workload
    assert isinstance(traffic, Traffic)
    traffic = traffic.model_copy(update={"system_prompt": 512, "requests": 60})
    one, two = servers(), servers(gpus=2, instances=2)
    alone, both = run_workload(one, traffic, 3), run_workload(two, traffic, 3)
    assert both.counts.queried_tokens == alone.counts.queried_tokens
    missed = [run.counts.queried_tokens - run.counts.hit_tokens for run in (alone, both)]
    # 512 tokens are computed once more on the second server; requests that arrive together may add a little
    assert 512 <= missed[1] - missed[0] < 5 * 512
    assert client_metrics(traffic, both) is not None


DECODES = Step(50, 0, 50, 50, 40_000, 0.0)


def split_time(*arguments: str, step: Step = DECODES, model: str = "Qwen/Qwen2.5-14B", sharing: int = 1) -> StepTime:
    made = servers(*arguments, gpus=8, card="h200", model=model).config
    time = StepTime(made, parameters_of("h200"))
    time.sharing = sharing
    time.advance(step)
    return time


def test_the_parts_of_a_step_on_two_gpus() -> None:
    one, two = split_time().seconds, split_time("-tp", "2").seconds
    # Matrices halve but for the corner of the roofline, which scales with them; all 8 key-value heads are split
    assert two["weights"] == pytest.approx(one["weights"] / 2, rel=1e-9)
    assert two["attention"] == pytest.approx(one["attention"] / 2)
    assert two["sampling"] == one["sampling"]
    assert one["kernels"] / 2 < two["kernels"] < one["kernels"]
    # 56 tokens, the captured size, × 5120 × 2 bytes in 97 all-reduces, and 50 × 152,064 logits
    bandwidth = 900e9 / 2 * 0.71
    reduce, gather = 5.5e-6 + 56 * 10_240 / bandwidth, 5.5e-6 + 50 * 152_064 * 2 / 2 / bandwidth
    assert two[COMMUNICATION] == pytest.approx(97 * reduce + gather)
    assert COMMUNICATION not in one


def test_one_sequence_passes_one_group_of_layers_after_another() -> None:
    step = Step(1, 0, 1, 1, 500, 0.0)
    one, two = split_time(step=step).seconds, split_time("-pp", "2", step=step).seconds
    for cause in ("weights", "attention", "kernels", "sampling"):
        assert two[cause] == pytest.approx(one[cause])
    assert two[COMMUNICATION] == pytest.approx(5.5e-6 + 2 * 10_240 / (900e9 / 2 * 0.71))


def test_groups_of_layers_work_on_batches_at_once() -> None:
    prompts = Step(0, 8000, 4, 0, 0, 4 * 2000 * 2001 / 2, decodes_only=False)
    one, four = split_time(step=prompts).seconds, split_time("-pp", "4", step=prompts).seconds
    # Four prompts keep four groups busy: a quarter of the attention, and little more than that of the products
    assert four["attention"] == pytest.approx(one["attention"] / 4)
    assert one["weights"] / 4 < four["weights"] < 0.3 * one["weights"]


def test_servers_that_share_a_gpu_take_turns() -> None:
    alone, shared = split_time(), split_time(sharing=2)
    card = sum(alone.seconds[cause] for cause in ("weights", "attention", "kernels", "sampling"))
    assert shared.seconds[OTHER_SERVERS] == pytest.approx(card)
    # The card bounds this step, so that the whole step takes twice as long
    assert sum(shared.seconds.values()) == pytest.approx(2 * sum(alone.seconds.values()))


def test_two_servers_on_a_gpu_have_half_of_its_memory_each() -> None:
    one, two = servers().budget, servers(instances=2).budget
    fixed = one.weights_gib + one.activations_gib + parameters_of("t4").runtime_gib
    assert two.kv_gib == pytest.approx(0.9 * 14.56 / 2 - fixed)
    assert servers(instances=2).gpus == 1


def test_two_servers_on_a_gpu_pay_where_the_host_is_the_bottleneck() -> None:
    users_50 = BenchServeWorkload(num_prompts=100, max_concurrency=50, input_len=512, output_len=128)

    def gain(card: str) -> float:
        rates = []
        for instances in (1, 2):
            made = servers(card=card, instances=instances)
            rates.append(run(made, users_50).bench_metrics((50, 99))["output_throughput"] or 0.0)
        return rates[1] / rates[0]

    assert gain("t4") < 0.85
    assert gain("h200") > 1.05


def test_speculation_on_two_servers_draws_different_answers() -> None:
    made = servers(*GREEDY, *SUFFIX, gpus=2, instances=2)
    result = run(made, BenchServeWorkload(num_prompts=2, max_concurrency=2, input_len=100, output_len=200))
    first, second = ([tokens for _, tokens in request.segments] for request in result.requests)
    assert sum(first) == sum(second) == 200
    assert first != second


def test_the_kv_cache_that_a_flag_sets_must_fit_into_the_part_of_each_server() -> None:
    from tuner.engines.simulator.memory import StartFailed

    flag = ("--kv-cache-memory-bytes", "6G")
    assert servers(*flag).budget.tokens > 400_000
    with pytest.raises(StartFailed, match="CUDA out of memory"):
        servers(*flag, instances=2)


def test_counters_of_all_servers_are_summed() -> None:
    made = servers("--max-model-len", "256", gpus=2, instances=2)
    made.budget = replace(made.budget, blocks=40, tokens=640)
    result = run(made, BenchServeWorkload(num_prompts=24, max_concurrency=24, input_len=100, output_len=60))
    assert result.counts.preemptions > 0
    assert len(result.counts.queued_s) == 24
    assert result.trace.steps == len(result.received_s)
    assert [state[0] for state in result.trace.states] == sorted(state[0] for state in result.trace.states)
