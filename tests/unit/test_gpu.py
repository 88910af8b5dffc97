import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from search_spaces.catalogue.hardware import hardware_named
from search_spaces.units import GIB
from tests.some import some
from tuner import gpu
from tuner.gpu import (
    SlowdownWatch,
    devices,
    energy_j,
    hardware_profile,
    host_facts,
    host_limits,
    host_memory_gib,
    load_warning,
    slowdowns,
    usable_cores,
    used_memory_gib,
    wait_until_free,
)


class FakeNvmlError(Exception):
    """The driver's error."""


@dataclass
class FakeNvml:
    """Cards by name and memory; each read of the memory returns the next value of `used_gib`, then always the last."""

    cards: tuple[tuple[str, tuple[int, int], float], ...] = (("Tesla T4", (7, 5), 15.0), ("NVIDIA X", (9, 0), 100.0))
    used_gib: list[float] = field(default_factory=lambda: [0.5])
    broken: bool = False
    counter_mj: int | None = 1_234_567
    reads: int = 0
    clock_bits: int = 0
    NVMLError: type[Exception] = FakeNvmlError

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        if self.broken:
            raise FakeNvmlError
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.broken or index >= len(self.cards):
            raise FakeNvmlError
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.cards[handle][0]

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.cards[handle][1]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        used = self.used_gib[min(self.reads, len(self.used_gib) - 1)]
        self.reads += 1
        return SimpleNamespace(total=self.cards[handle][2] * GIB, used=used * GIB)

    def nvmlDeviceGetMemoryBusWidth(self, handle: int) -> int:
        return 256

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        assert kind == 2
        return 5001

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if self.counter_mj is None:
            raise FakeNvmlError
        return self.counter_mj

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        if self.broken:
            raise FakeNvmlError
        return self.clock_bits


def test_devices_have_the_values_of_the_driver() -> None:
    first, second = devices(FakeNvml(), {})

    assert (first.index, first.uuid, first.name, first.driver) == (0, "GPU-0abc", "Tesla T4", "580.1")
    assert first.compute_capability == (7, 5)
    assert first.memory_total_gib == 15.0
    assert (second.index, second.name) == (1, "NVIDIA X")


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("1,0", [1, 0]),
        ("1", [1]),
        (" 0 , 1 ", [0, 1]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
        ("GPU-1a", [1]),
        ("GPU-1abc,GPU-0abc", [1, 0]),
        ("GPU-", []),
        ("MIG-1abc", []),
        ("0,0", [0]),
    ],
)
def test_cuda_visible_devices_is_respected(visible: str, indices: list[int]) -> None:
    assert [device.index for device in devices(FakeNvml(), {"CUDA_VISIBLE_DEVICES": visible})] == indices


def test_a_driver_that_fails_means_no_devices() -> None:
    nvml = FakeNvml(broken=True)

    assert devices(nvml, {}) == []
    assert used_memory_gib(0, nvml) is None
    assert energy_j(0, nvml) is None
    assert hardware_profile(0, nvml) is None
    assert wait_until_free(0, 1.0, 60.0, threading.Event(), nvml).free is False


def test_a_host_without_nvml_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_pynvml", lambda: None)

    assert devices() == []
    assert used_memory_gib(0) is None
    assert energy_j(0) is None
    assert hardware_profile(0) is None


def test_the_memory_in_use_is_in_gib() -> None:
    assert used_memory_gib(1, FakeNvml(used_gib=[3.25])) == 3.25
    assert used_memory_gib(5, FakeNvml()) is None


def test_energy_is_in_joules_where_the_card_has_a_counter() -> None:
    assert energy_j(1, FakeNvml()) == 1234.567
    assert energy_j(0, FakeNvml(counter_mj=None)) is None


def test_the_wait_ends_as_soon_as_the_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_POLL_S", 0.01)
    nvml = FakeNvml(used_gib=[12.0, 9.0, 0.5])

    wait = wait_until_free(0, 1.0, 60.0, threading.Event(), nvml)

    assert (wait.free, wait.used_gib, nvml.reads) == (True, 0.5, 3)


def test_exactly_the_limit_counts_as_free() -> None:
    assert wait_until_free(0, 1.0, 0.0, threading.Event(), FakeNvml(used_gib=[1.0])).free


def test_the_wait_ends_at_the_deadline() -> None:
    begun = time.monotonic()
    wait = wait_until_free(0, 1.0, 0.05, threading.Event(), FakeNvml(used_gib=[12.0]))

    assert (wait.free, wait.used_gib) == (False, 12.0)
    assert time.monotonic() - begun >= 0.05


def test_cancel_ends_the_wait() -> None:
    cancelled = threading.Event()
    cancelled.set()

    wait = wait_until_free(0, 1.0, 60.0, cancelled, FakeNvml(used_gib=[12.0]))

    assert (wait.free, wait.used_gib) == (False, 12.0)


def test_a_known_card_has_the_known_memory_and_bandwidth() -> None:
    assert hardware_profile(0, FakeNvml()) == hardware_named("t4")


def test_a_known_card_with_other_memory_has_the_drivers_value() -> None:
    profile = some(hardware_profile(0, FakeNvml(cards=(("NVIDIA A100-PCIE-40GB", (8, 0), 39.4),))))

    assert (profile.key, profile.memory_gib, profile.bandwidth_gbs) == ("a100", 39.4, 2039)
    # The known A100 is on an SXM board; this one has no NVLink
    assert (profile.link, profile.link_gbs) == (None, None)
    on_sxm = some(hardware_profile(0, FakeNvml(cards=(("NVIDIA A100-SXM4-80GB", (8, 0), 79.1),))))
    assert (on_sxm.link, on_sxm.link_gbs) == ("nvlink", 600)


def test_an_unknown_cards_bandwidth_is_bus_times_double_clock() -> None:
    profile = some(hardware_profile(1, FakeNvml()))

    assert hardware_profile(2, FakeNvml()) is None
    assert (profile.name, profile.key, profile.vendor) == ("NVIDIA X", "x", "nvidia")
    assert profile.compute_capability == (9, 0)
    assert profile.memory_gib == 100.0
    assert profile.bandwidth_gbs == pytest.approx(320.064)  # 256 bit / 8 × 5001 MHz × 2


def test_host_facts_describe_this_host() -> None:
    facts = host_facts()

    assert facts["cores_usable"] == len(os.sched_getaffinity(0))
    assert isinstance(facts["memory_gib"], float)
    assert facts["memory_gib"] > 0
    assert set(facts) == {
        "cpu", "cores_physical", "cores", "cores_usable", "memory_gib", "python", "platform", "host",
    }  # fmt: skip


def test_the_limits_of_the_host_are_those_of_its_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1073741824\n")
    monkeypatch.setattr("tuner.gpu._CGROUP_LIMIT", limit)
    monkeypatch.setattr("tuner.gpu._SHARED_MEMORY", tmp_path / "none")
    assert host_limits() == {"cores": usable_cores(), "host_memory_gib": 1.0, "shm_gib": None}
    limit.write_text("max\n")
    assert host_memory_gib() > 1.0


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x01 | 0x04, ()),  # idle, and at the power limit as under any full load
        (0x20, ("its temperature",)),
        (0x08 | 0x40 | 0x20, ("the hardware", "its temperature")),
        (0x80, ("its power supply",)),
    ],
)
def test_a_gpu_is_slowed_down_by_what_the_driver_says(bits: int, reasons: tuple[str, ...]) -> None:
    assert slowdowns(0, FakeNvml(clock_bits=bits)) == reasons
    assert slowdowns(0, FakeNvml(clock_bits=bits, broken=True)) == ()


def test_a_gpu_that_is_slowed_down_for_a_notable_share_of_the_time_is_told() -> None:
    readings = iter([*[("its temperature",)] * 3, *[()] * 97, *[("the hardware",)], *[()] * 99])
    watch = SlowdownWatch([0], lambda index: next(readings))
    for _ in range(100):
        watch.look()
    assert watch.warnings() == [
        "warning: GPU 0 was slowed down by its temperature 3% of the time, so that figures vary; cool it"
    ]
    for _ in range(100):  # 3 and 1 of 200
        watch.look()
    assert watch.warnings() == []


@pytest.mark.parametrize(("load", "cores", "warns"), [(25.0, 2, True), (2.0, 2, False), (10.0, 64, False)])
def test_a_machine_with_more_to_run_than_processors_is_loaded(load: float, cores: int, warns: bool) -> None:
    found = load_warning(load, cores)
    assert (found is not None) == warns
    if found is not None:
        assert found.startswith(
            "warning: this machine is loaded (load average 25.0, 2 processors), so that figures vary"
        )
