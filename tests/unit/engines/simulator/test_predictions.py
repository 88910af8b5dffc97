"""Servers whose runs cannot differ share one run, and each gets what a run of its own would give."""

from itertools import product

import pytest

from search_spaces import hardware_named, known_models
from tuner.engines.simulator import prediction
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform, Predictions, build_server
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Traffic

L4 = Platform(hardware_named("l4"), parameters_of("l4"), (0, 25, 1), frozenset({"arctic_inference"}))
LOOP = ClosedLoop(max_concurrency=20, num_prompts=60, input_len=512, output_len=64)
DOCUMENTS = Traffic.model_validate(
    {
        "arrivals": {"process": "poisson", "rate": 8},
        "requests": 40,
        "max_in_flight": 30,
        "classes": {
            "question": {
                "input": {"uniform": [40, 120]},
                "output": {"uniform": [16, 128]},
                "prefix": {"tokens": 1000, "documents": 12, "zipf": 1},
            }
        },
    }
)
SPECULATION = ("--speculative-config", '{"method": "suffix"}')


def server(*arguments: str) -> ConfiguredServer:
    return build_server(L4, ("--max-model-len", "2048", *arguments), {}, known_models()["Qwen/Qwen2.5-0.5B"])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[ConfiguredServer]:
    """The servers of all runs."""
    found: list[ConfiguredServer] = []
    run = prediction.run_workload

    def counted(server: ConfiguredServer, *arguments: object) -> object:
        found.append(server)
        return run(server, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(prediction, "run_workload", counted)
    return found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--gpu-memory-utilization", "0.9"), ("--gpu-memory-utilization", "0.8")),
        (("--dtype", "float16"), ("--dtype", "bfloat16")),
        (("--max-num-seqs", "256", "--enforce-eager"), ("--max-num-seqs", "20", "--enforce-eager")),
    ],
)
def test_servers_that_run_alike_share_a_run(
    first: tuple[str, ...], second: tuple[str, ...], runs: list[ConfiguredServer]
) -> None:
    predictions = Predictions(LOOP)
    assert predictions.of(server(*first)) is predictions.of(server(*second))
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--max-num-seqs", "20", "--enforce-eager"), ("--max-num-seqs", "19", "--enforce-eager")),
        (("--kv-cache-memory-bytes", str(2**27)), ("--kv-cache-memory-bytes", str(2**26))),
        ((), ("--enforce-eager",)),
    ],
)
def test_servers_that_run_otherwise_do_not(
    first: tuple[str, ...], second: tuple[str, ...], runs: list[ConfiguredServer]
) -> None:
    predictions = Predictions(LOOP)
    assert predictions.of(server(*first)) != predictions.of(server(*second))
    assert len(runs) == 2


@pytest.mark.parametrize("workload", [LOOP, DOCUMENTS], ids=["loop", "documents"])
@pytest.mark.parametrize(
    "more", [(), SPECULATION, ("--no-enable-prefix-caching",)], ids=["plain", "drafts", "uncached"]
)
def test_a_shared_run_equals_the_servers_own(
    workload: SingleWorkload, more: tuple[str, ...], runs: list[ConfiguredServer]
) -> None:
    sizes = [("--kv-cache-memory-bytes", str(megabytes << 20)) for megabytes in (400, 60, 90, 200, 130, 800, 260, 160)]
    sequences = [("--max-num-seqs", str(count)) for count in (64, 8)]
    servers = [server(*size, *count, *more) for count, size in product(sequences, sizes)]
    predictions = Predictions(workload)
    shared = [predictions.of(each) for each in servers]
    assert len(runs) < len(servers)
    assert shared == [Predictions(workload).of(each) for each in servers]
