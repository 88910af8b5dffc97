"""The environment of servers and clients: what they inherit, and which GPUs they see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DROPPED_PREFIXES = ("VLLM_", "RAY_", "PGPASS", "TUNER_WEBHOOK_")
"""Inherited variables with these prefixes are dropped: a trial must not depend on the shell that started the study,
and servers need neither the password of the tuner's database nor the addresses of webhooks. `--env` sets them, and then
they are part of the study's premise."""


def base_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the inherited variables without those of `DROPPED_PREFIXES`."""
    return {name: value for name, value in inherited.items() if not name.startswith(DROPPED_PREFIXES)}


OWN_VARIABLES = frozenset(
    {
        "VLLM_HOST_IP",
        "VLLM_CACHE_ROOT",
        "VLLM_NO_USAGE_STATS",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TMPDIR",
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
    }
)
"""The variables that the tuner sets for every server. They belong to the trial, not to the configuration."""


def visible_gpus(indices: Sequence[int]) -> dict[str, str]:
    """Return the variables that show a server these GPUs only, by NVML's indices; none on a machine without a GPU."""
    if not indices:
        return {}
    shown = ",".join(str(index) for index in indices)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": shown}
