"""The time of collectives against the equations worked out by hand, and against published tables."""

from dataclasses import replace

import pytest

from search_spaces import HardwareProfile, hardware_named, known_hardware, known_models
from tests.unit.engines.simulator.helpers import PACKAGES
from tuner.engines.simulator.parameters import Parameters, parameters_of
from tuner.engines.simulator.serve_config import resolve_serve_config
from tuner.engines.simulator.step_time import Communication

MIB = 2**20
ROUND = {"all_reduce_us": 4.0, "all_reduce_gpu_us": 1.0, "nvlink_share": 0.5, "pcie_share": 0.5}
NVLINK = replace(hardware_named("h100"), link="nvlink", link_gbs=900)
PCIE = replace(hardware_named("h100"), link="pcie", link_gbs=64)


def collectives(card: HardwareProfile, *arguments: str, parameters: Parameters | None = None) -> Communication:
    model = known_models()["Qwen/Qwen2.5-72B-Instruct"]  # 80 layers, hidden 8192, 152064 tokens
    made = resolve_serve_config(arguments, {}, model, card, (0, 25, 1), PACKAGES, 8)
    return Communication(made, parameters or replace(parameters_of("h100"), **ROUND, pcie_latency_factor=3.0))


def test_collectives_over_nvlink() -> None:
    # 900 / 2 × 0.5 = 225 GB/s: 450,000 bytes take 2 µs
    two, four = collectives(NVLINK, "-tp", "2"), collectives(NVLINK, "-tp", "4")
    assert two.all_reduce(450_000) == pytest.approx(8e-6)  # 4 + 2 × 1, and 2 × 1/2 × 2
    assert four.all_reduce(450_000) == pytest.approx(11e-6)  # 4 + 4 × 1, and 2 × 3/4 × 2
    assert four.all_gather(450_000) == pytest.approx(9.5e-6)
    assert four.send(450_000) == pytest.approx(8e-6)


def test_collectives_over_pcie() -> None:
    # 64 / 2 × 0.5 = 16 GB/s: 480,000 bytes take 30 µs
    assert collectives(PCIE, "-tp", "2").all_reduce(480_000) == pytest.approx(48e-6)  # 3 × 6, and 30


def test_an_unknown_link_counts_as_pcie_gen4() -> None:
    unknown = collectives(replace(PCIE, link=None, link_gbs=None), "-tp", "2")
    assert unknown.all_reduce(480_000) == pytest.approx(48e-6)


def test_a_step_has_two_all_reduces_in_each_layer_and_one_after_the_embedding() -> None:
    two = collectives(NVLINK, "-tp", "2")
    assert two.of_layers(100) == pytest.approx(161 * two.all_reduce(100 * 8192 * 2))
    assert two.of_logits(64) == pytest.approx(two.all_gather(64 * 152_064 * 2))
    half = collectives(NVLINK, "-tp", "2", "-pp", "2")
    assert half.of_layers(100) == pytest.approx(81 * two.all_reduce(100 * 8192 * 2))
    assert half.of_stages(100, 2) == pytest.approx(two.send(2 * 100 * 8192 * 2))


def test_without_tensor_parallelism_nothing_is_reduced_or_gathered() -> None:
    pipeline = collectives(NVLINK, "-pp", "4")
    assert (pipeline.of_layers(100), pipeline.of_logits(100)) == (0.0, 0.0)
    assert pipeline.of_stages(100, 4) == pytest.approx(3 * pipeline.send(2 * 100 * 8192 * 2))


PUBLISHED_H100 = {
    # vLLM pull request 24111: 2 and 6 GPUs; 24532: 4 GPUs. MiB of a tensor and µs of the fastest kernel.
    "2": {0.5: 7},
    "4": {0.5: 10, 1: 14, 1.5: 19, 2: 21, 3: 23, 4: 28},
    "6": {0.5: 13, 1: 16, 1.5: 18, 2: 21, 3: 25, 4: 31},
}
PUBLISHED_PCIE = {4: 19.4, 8: 20.3, 16: 22.3, 32: 24.2, 128: 51.8, 384: 83.5}
"""KiB and µs of NCCL in a CUDA graph, four V100s behind a PCIe Gen3 switch (haohervchb/sglang-V100 pull request 2)."""


@pytest.mark.parametrize(
    ("gpus", "mib", "us"), [(g, m, us) for g, row in PUBLISHED_H100.items() for m, us in row.items()]
)
def test_all_reduces_of_h100s_are_within_25_percent_of_the_published(gpus: str, mib: float, us: float) -> None:
    model = replace(known_models()["Qwen/Qwen2.5-72B-Instruct"], heads=96)
    made = resolve_serve_config(["-tp", gpus], {}, model, hardware_named("h100"), (0, 25, 1), PACKAGES, 8)
    predicted = Communication(made, parameters_of("h100")).all_reduce(mib * MIB)
    assert predicted * 1e6 == pytest.approx(us, rel=0.25)


@pytest.mark.parametrize(("kib", "us"), PUBLISHED_PCIE.items())
def test_all_reduces_over_pcie_are_within_35_percent_of_the_published(kib: int, us: float) -> None:
    gen3 = replace(PCIE, link_gbs=32)
    predicted = collectives(gen3, "-tp", "4", parameters=parameters_of("h100")).all_reduce(1024 * kib)
    assert predicted * 1e6 == pytest.approx(us, rel=0.35)


def test_every_known_gpu_has_its_link() -> None:
    links = {key: (card.link, card.link_gbs) for key, card in known_hardware().items() if card.vendor == "nvidia"}
    assert links == {
        "t4": ("pcie", 32),
        **dict.fromkeys(("l4", "rtx6000ada", "rtx4090", "a10", "a10g", "l40s"), ("pcie", 64)),
        **dict.fromkeys(("rtx5090", "rtxpro6000"), ("pcie", 128)),
        **{"a100": ("nvlink", 600), "a800": ("nvlink", 400)},
        **dict.fromkeys(("h20", "h100", "h200"), ("nvlink", 900)),
        **dict.fromkeys(("b200", "b300", "gb200"), ("nvlink", 1800)),
    }
