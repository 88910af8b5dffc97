"""Known hardware and its names."""

from __future__ import annotations

import pytest

from search_spaces import SpaceError, hardware_named, known_hardware


def test_the_known_devices() -> None:
    assert list(known_hardware()) == ["t4", "l4", "rtx6000ada", "a10g", "a100", "l40s", "h100", "h200", "cpu"]
    assert known_hardware()["t4"].compute_capability == (7, 5)
    assert known_hardware()["cpu"].memory_gib is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("T4", "t4"),
        ("t4", "t4"),
        ("Tesla T4", "t4"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA A100-PCIE-40GB", "a100"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("RTX 6000 Ada", "rtx6000ada"),
        ("NVIDIA L40S", "l40s"),
        ("cpu", "cpu"),
    ],
)
def test_names(name: str, key: str) -> None:
    assert hardware_named(name).key == key


@pytest.mark.parametrize("name", ["B300", "L40", "", "A10"])
def test_an_unknown_name_is_an_error_with_a_list(name: str) -> None:
    with pytest.raises(SpaceError, match="known: t4, l4, rtx6000ada, a10g, a100, l40s, h100, h200, cpu"):
        hardware_named(name)
