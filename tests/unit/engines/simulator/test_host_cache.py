"""The KV cache in the host's memory: what it keeps, and how requests wait for their blocks."""

from statistics import fmean

import pytest

from search_spaces.catalogue.layers import Attention
from tests.unit.engines.simulator.helpers import config, config_of, shape
from tuner.engines.simulator.block_pool import Chain
from tuner.engines.simulator.client import workload_client
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.host_cache import HostCache
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused, NotSimulated
from tuner.engines.simulator.scheduler import Scheduler
from tuner.engines.simulator.sequence import Prompt, Sequence
from tuner.workloads.presets import load_preset
from tuner.workloads.traffic import Traffic

SIZE = 16


def question(index: int, document: Chain, output: int = 2) -> Sequence:
    """Return a request with a document of 4 blocks and 16 tokens of its own."""
    return Sequence(Prompt(index, 5 * SIZE, output, ((document, 4 * SIZE),)), SIZE, 0.0)


def take(by: Scheduler, now: float) -> tuple[int, int]:
    """Take one step; return its prefill tokens and the requests that wait for their blocks."""
    prefill = by.plan(now).prefill
    assert by.host is not None
    waiting = len(by.host.loading)
    by.finish()
    return prefill, waiting


def test_the_block_that_was_used_least_recently_is_evicted_from_the_end_of_its_chain() -> None:
    host, documents = HostCache(7, 0.0), [Chain(), Chain()]
    for index, document in enumerate(documents):
        sequence = question(index, document)
        sequence.held, sequence.blocks = [4], 4
        host.store(sequence)
    # 8 blocks were stored and 7 fit: the first document lost its last one
    found = [host.found_blocks(question(2 + index, document), SIZE) for index, document in enumerate(documents)]
    assert found == [3, 4]


def test_a_request_waits_for_the_blocks_that_only_the_host_has() -> None:
    # a question takes 6 of 8 blocks: 5 for its prompt, and one for its answer
    made = Scheduler(config(card="h200"), 8, HostCache(100, 0.01))
    first, second = Chain(), Chain()
    for index, document in enumerate((first, second)):
        made.add(question(index, document))
        assert take(made, 0.0) == (80, 0)
        assert take(made, 0.0) == (0, 0)
    # the second question got 2 blank blocks, the first one's 2 own blocks, and the last 2 of its document's 4
    assert first.cached == 2
    made.add(question(2, first))
    assert take(made, 1.0) == (0, 1)
    assert (made.idle, made.busy) == (True, True)
    assert made.next_load_s == pytest.approx(1.02)
    assert take(made, 1.01) == (0, 1)
    # it has all 4 after 2 x 10 ms and computes its own 16 tokens
    assert take(made, 1.03) == (16, 0)
    assert take(made, 1.04) == (0, 0)
    assert (made.busy, made.pool.used) == (False, 0)


def test_a_request_that_waits_for_its_blocks_can_be_aborted() -> None:
    made = Scheduler(config(card="h200"), 6, HostCache(100, 0.01))
    first = Chain()
    for index, document in enumerate((first, Chain())):
        made.add(question(index, document))
        take(made, 0.0)
        take(made, 0.0)
    gone = question(2, first)
    made.add(gone)
    take(made, 1.0)
    assert made.pool.used == 5
    made.abort(gone)
    assert (made.busy, made.pool.used) == (False, 0)


def documents(offloaded_gib: int) -> tuple[float, float]:
    """Return the mean TTFT and the mean time of a token, in ms, of the load of the report after its warm-up."""
    given = ("--max-model-len", "16384", *(("--kv-offloading-size", str(offloaded_gib)) if offloaded_gib else ()))
    resolved = config(*given, card="h100", model="Qwen/Qwen3-8B", version=(0, 25, 1))
    traffic = load_preset("documents-8b").workload
    assert isinstance(traffic, Traffic)
    made = ConfiguredServer(resolved, parameters_of("h100"))
    run = made.run(workload_client(traffic.model_copy(update={"requests": 290}), 1, True, 0.0), 1, noise=False)
    measured = run.requests[90:]
    ttft = [(each.first_s or 0.0) - (each.sent_s or 0.0) for each in measured]
    tpot = [((each.end_s or 0.0) - (each.first_s or 0.0)) / max(1, each.prompt.output - 1) for each in measured]
    return 1000 * fmean(ttft), 1000 * fmean(tpot)


def test_documents_that_the_gpu_cannot_hold_come_from_the_host_as_measured() -> None:
    # docs/reports/2026-11-26-h100-kv-offload.md: 128 GiB give a mean TTFT of 143 and 155 ms and a mean TPOT of 11.4 and
    # 11.6 ms, where the defaults have 315 and 403 ms, and 32 GiB gain nothing
    ttft, tpot = documents(128)
    assert ttft == pytest.approx(149, rel=0.1)
    assert tpot == pytest.approx(11.5, rel=0.1)
    assert documents(32) == documents(0)
    assert documents(0)[0] > 2 * ttft


@pytest.mark.parametrize(
    ("arguments", "version", "part"),
    [
        (("--kv-offloading-size", "8", "--kv-offloading-backend", "lmcache"), (0, 25, 1), "--kv-offloading-backend lm"),
        (
            ("--kv-offloading-size", "8"),
            (0, 32, 0),
            "--kv-offloading-size of vLLM 0.32.0: not simulated, because no run",
        ),
        (("--kv-offloading-size", "8"), (0, 15, 1), "--kv-offloading-size of vLLM 0.15.1: not simulated"),
    ],
)
def test_what_was_not_measured_is_refused(arguments: tuple[str, ...], version: tuple[int, ...], part: str) -> None:
    with pytest.raises(NotSimulated, match=part):
        config(*arguments, card="h200", version=version)


@pytest.mark.parametrize("size", ["nan", "inf"])
def test_a_size_that_is_no_number_is_refused(size: str) -> None:
    with pytest.raises(ConfigRefused, match="kv_offloading_size: Input should be a finite number"):
        config("--kv-offloading-size", size, card="h200", version=(0, 25, 1))


def test_windows_and_states_are_refused() -> None:
    model = shape((2, Attention(8, 2, 64)), (6, Attention(8, 2, 64, window=33)))
    with pytest.raises(NotSimulated, match="--kv-offloading-size with windows or states: not simulated"):
        config_of(model, "--kv-offloading-size", "8")
    assert config_of(model, "--kv-offloading-size", "None").host_cache_gib == 0
