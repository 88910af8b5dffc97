"""The free parameters of the simulator, each with a unit and a source, and the error of its predictions by regime.

A regime is a card, the format of the weights, and the kinds of layers, on one GPU without drafts. A regime with fewer
than `LEAST_ROWS` rows has no band: what the fit says about one regime says nothing about another.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces import ModelShape
from search_spaces.yaml_file import read_yaml
from tuner.engines.simulator.serve_config import ServeConfig

PARAMETERS_FILE = Path(__file__).with_name("parameters.yaml")


@dataclass(frozen=True)
class Parameters:
    """The parameters of one card; `parameters.yaml` documents each.

    Names end in their unit: `share` is a part of the data sheet's value, `us` microseconds. Host times are those of a
    host of speed 1 (`HardwareProfile.host_speed`).
    """

    bandwidth_share: float
    arithmetic_share: float
    native_arithmetic_factor: float
    native_bandwidth_factor: float
    block_arithmetic_factor: float
    block_bandwidth_factor: float
    marlin_arithmetic_factor: float
    marlin_8_bit_factor: float
    marlin_hopper_factor: float
    awq_arithmetic_share: float
    gemm_arithmetic_share: float
    attention_arithmetic_share: float
    triton_arithmetic_factor: float
    flash_attn_3_bandwidth_share: float
    flash_attn_3_fp8_factor: float
    flash_attn_2_bandwidth_share: float
    flash_attn_2_tile_tokens: float
    flashinfer_bandwidth_share: float
    triton_attn_bandwidth_share: float
    flex_attention_bandwidth_share: float
    head_scale_factor: float
    expert_bandwidth_share: float
    expert_arithmetic_share: float
    expert_kernels_per_layer: float
    expert_launches_per_layer: float
    expert_skew: float
    latent_arithmetic_share: float
    scan_arithmetic_share: float
    kernel_us: float
    fused_kernels_per_layer: float
    eager_kernels_per_layer: float
    quantize_kernels_per_layer: float
    cache_kernels_per_layer: float
    fused_passes: float
    eager_passes: float
    sampling_passes: float
    greedy_passes: float
    step_us: float
    step_sequence_us: float
    admit_us: float
    full_graph_us: float
    piece_us: float
    flex_mask_us: float
    triton_launches_per_layer: float
    fused_launches_per_layer: float
    eager_launches_per_layer: float
    quantize_launches_per_layer: float
    first_use_s: float
    triton_first_use_s: float
    ngram_draft_us: float
    suffix_draft_us: float
    draft_pass_us: float
    request_us: float
    connect_us: float
    prompt_token_us: float
    token_us: float
    chunk_us: float
    client_us: float
    runtime_gib: float
    activation_factor: float
    graph_mib_per_layer: float
    loop_onset_tokens: float
    free_acceptance: float
    loop_acceptance: float
    mtp_acceptance: float
    eagle_acceptance: float
    draft_model_acceptance: float
    start_s: float
    import_s: float
    load_gibs: float
    offload_gbs: float
    pin_gibs: float
    compile_cold_s: float
    compile_new_s: float
    compile_warm_s: float
    capture_s: float
    noise_share: float
    all_reduce_us: float
    all_reduce_gpu_us: float
    pcie_latency_factor: float
    nvlink_share: float
    pcie_share: float
    communication_gib: float


@cache
def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = read_yaml(PARAMETERS_FILE).data
    return document


def parameters_of(card: str) -> Parameters:
    """Return the parameters of a card by its key: the card's own values, and the general ones for the rest."""
    document = _document()
    values = {name: float(entry["value"]) for name, entry in document["parameters"].items()}
    values |= {name: float(value) for name, value in document["cards"].get(card, {}).items()}
    return Parameters(**{field.name: values[field.name] for field in fields(Parameters)})


def documented_parameters() -> Mapping[str, Mapping[str, Any]]:
    """Return the value, unit, meaning and source of every parameter."""
    entries: Mapping[str, Mapping[str, Any]] = _document()["parameters"]
    return entries


HIGHEST_SHARE = 0.98
"""Upper bound of a perturbed parameter that is a share of a data sheet's figure."""


def perturbed(stored: Parameters, card: str, seed: int, spread: float) -> Parameters:
    """Return parameters whose fitted values are multiplied by exp(N(0, spread)), as if the card were another one.

    Args:
        stored: the parameters.
        card: the card's key; the same seed perturbs each card in its own way.
        seed: determines every factor.
        spread: standard deviation of a factor's logarithm.
    """
    fitted = {name: entry for name, entry in documented_parameters().items() if str(entry["source"]) == "fitted"}
    changes = {}
    for name, entry in fitted.items():
        random = np.random.default_rng([zlib.crc32(repr(part).encode()) for part in (seed, card, name)])
        value = getattr(stored, name) * math.exp(spread * random.standard_normal())
        changes[name] = min(HIGHEST_SHARE, value) if entry["unit"] == "share" else value
    return replace(stored, **changes)


def parameters_digest() -> str:
    """Return a hash over all values, which changes whenever a prediction may change."""
    document = _document()
    values = {name: entry["value"] for name, entry in document["parameters"].items()}
    text = json.dumps([values, document["cards"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def documented_bands() -> Sequence[Mapping[str, Any]]:
    """Return the error bands: `card`, `layers`, `weights`, `rows` and the relative error of each metric."""
    bands: Sequence[Mapping[str, Any]] = _document()["error_bands"]
    return bands


LEAST_ROWS = 10
"""Rows of a regime from which the error of nine of ten is one."""
_FULL, _DENSE = "16-bit", "dense"
_NAMES = {"fp8": "FP8", "fp8_per_block": "FP8 (by blocks)", "awq": "AWQ", "awq_marlin": "AWQ", "gptq": "GPTQ"}


@dataclass(frozen=True)
class ErrorBands:
    """The relative error of each metric; without any, the reason why there is none."""

    errors: Mapping[str, float]
    reason: str | None = None


def find_error_bands(config: ServeConfig, *, instances: int = 1) -> ErrorBands:
    """Return the errors of predictions of a configuration.

    Args:
        config: of each server.
        instances: equal servers behind a router.
    """
    if instances > 1 or config.parallel.gpus > 1 or config.servers_per_gpu > 1:
        return _no_band("several GPUs or servers")
    layers, weights, card = layers_of(config.model), weights_of(config), config.card
    if config.speculation is not None:
        return _no_band(f"drafts on one {card.name}")
    for entry in documented_bands():
        regime = (entry["card"], entry["layers"], entry["weights"])
        if regime == (card.key, layers, weights) and entry["rows"] >= LEAST_ROWS:
            return ErrorBands({name: value for name, value in entry.items() if isinstance(value, float)})
    beside = "" if layers == _DENSE else f" with {layers}"
    return _no_band(f"{_NAMES.get(weights, weights)} weights{beside} on one {card.name}")


def layers_of(model: ModelShape) -> str:
    """Return the kinds of a model's layers that a prediction depends on; `dense` for full attention with an MLP."""
    kinds = {
        "experts": model.is_mixture_of_experts,
        "latent attention": model.has_latent_attention,
        "windows": model.has_windows,
        "recurrent layers": model.has_recurrent_layers,
    }
    return " and ".join(kind for kind, there in kinds.items() if there) or _DENSE


def weights_of(config: ServeConfig) -> str:
    """Return the format of the weights: 16 bits, or the quantization method."""
    return config.quantization or _FULL


def _no_band(what: str) -> ErrorBands:
    return ErrorBands({}, f"too few measured rows for {what}: no error band")
