"""Which layers a model's `config.json` declares, and whether they are those of a plain dense decoder.

A plain decoder has one kind of layer: full attention with grouped heads and a gated MLP. What else a file declares is
named by its key, so that nothing is predicted or ruled out for layers that no equation covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from search_spaces.catalogue.config_keys import whole_number
from search_spaces.yaml_file import read_yaml

_FILE = Path(__file__).with_name("architectures.yaml")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
"""Keys of the number of experts of a layer."""
_POSITIONS = "max_position_embeddings"
_LATENT, _ROTATED = "kv_lora_rank", "qk_rope_head_dim"
_HYBRID = "full_attention_interval"
_PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")
_KINDS = {
    "is_encoder_decoder": "an encoder-decoder",
    _LATENT: "multi-head latent attention (MLA)",
    "block_configs": "a model whose layers differ",
    _HYBRID: "a hybrid of full and linear attention",
    "hybrid_override_pattern": "a hybrid of attention and Mamba",
    "layers_block_type": "a hybrid of attention and Mamba",
    "attn_layer_period": "a hybrid of attention and Mamba",
    "attn_layer_indices": "a hybrid of attention and Mamba",
    "mamba_d_state": "a model with Mamba layers",
    "ssm_cfg": "a model with Mamba layers",
    "linear_attn_config": "a hybrid of full and linear attention",
    "attention_chunk_size": "chunked attention",
    "num_kv_shared_layers": "a KV cache that layers share",
    "cross_attention_layers": "cross-attention",
    "index_topk": "sparse attention",
}
"""Keys that say of which kind a model is, if their value is neither null, false, 0 nor empty."""
_FULL = ("full_attention", "attention")
_SLIDING = "sliding_attention"
_MODAL = ("vision_config", "audio_config", "thinker_config")
"""Keys of parts beside the decoder, which change neither its weights nor its KV cache."""
_LATENT_PARTS = ("index_topk",)
"""Keys of latent attention that only add to its KV cache."""
_SHOWN = 40
"""Characters of a value in a message."""


@dataclass(frozen=True)
class Unread:
    """Why a model is no plain dense decoder: its `kind`, and the `key` of config.json that says so."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} is not simulated ({self.key} in config.json)"


@dataclass(frozen=True)
class CacheLayers:
    """The layers of a model by what their KV cache holds; layers in neither count are taken to hold nothing.

    Attributes:
        full: layers that hold every token.
        windowed: layers that hold the last `window` tokens.
        window: tokens of a sliding window.
        latent: numbers of a token in a layer (latent attention, MLA); 0: keys and values of each key-value head.
    """

    full: int
    windowed: int = 0
    window: int = 0
    latent: int = 0


@dataclass(frozen=True)
class Architecture:
    """The layers that a config.json declares.

    Attributes:
        dense: whether `ModelShape.weight_bytes` holds for the decoder.
        cache: the layers of the KV cache, as far as they are certain; None if every layer holds every token.
        unread: what the simulator has no model of; None for a plain dense decoder.
        tied: whether the class ties the output head where config.json does not say.
        fills: keys that the class fills in with a number of its own.
    """

    dense: bool
    cache: CacheLayers | None
    unread: Unread | None
    tied: bool = False
    fills: tuple[str, ...] = ()


@cache
def _types() -> Mapping[str, Any]:
    types: Mapping[str, Any] = read_yaml(_FILE).data
    return types


def read_architecture(config: Mapping[str, Any], text: Mapping[str, Any]) -> Architecture:
    """Return the layers of a model; one without a `model_type` is taken for a dense decoder.

    Args:
        config: the whole config.json.
        text: its part for the decoder; the same where it has no such part.

    Raises:
        TypeError, ValueError: for an impossible value.
    """
    name = text.get("model_type") or config.get("model_type")
    known = {} if name is None else _types()["dense"].get(str(name))
    facts: Mapping[str, Any] = known or {}
    special = _special(config, text)
    if special is None and known is None:
        special = Unread("a model of this type", f"model_type {_shown(name)}")
    window = _window(text, facts)
    certain = known is not None or name in _types()["cache"]
    cache = _cache(text, window) if certain and not _varies(text) else CacheLayers(0)
    unread = special
    if unread is None and cache is not None:
        unread = Unread("sliding-window attention", "layer_types" if window is None else f"sliding_window {window}")
    modal = next((key for key in _MODAL if config.get(key)), None)
    if unread is None and modal is not None:
        unread = Unread("a multimodal model", modal)
    return Architecture(
        dense=special is None,
        cache=cache,
        unread=unread,
        tied=bool(facts.get("tied", False)),
        fills=tuple(facts.get("fills", ())),
    )


def _special(config: Mapping[str, Any], text: Mapping[str, Any]) -> Unread | None:
    """Return the first key that makes a model other than a dense decoder with full or sliding attention."""
    for key in EXPERTS:
        if text.get(key) not in (None, False, 0, 1):
            return Unread("a mixture of experts", f"{key} {_shown(text[key])}")
    for key, kind in _KINDS.items():
        value = text.get(key) or (key == "is_encoder_decoder" and config.get(key))
        if value:
            shown = "" if isinstance(value, Mapping | list) else f" {_shown(value)}"
            return Unread(kind, f"{key}{shown}")
    kinds = text.get("layer_types")
    other = [kind for kind in kinds if kind not in (*_FULL, _SLIDING)] if isinstance(kinds, list) else []
    return Unread("a model with layers of another kind", f"layer_types {_shown(other[0])}") if other else None


def _shown(value: object) -> str:
    """Return a value of a file in one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _window(text: Mapping[str, Any], facts: Mapping[str, Any]) -> int | None:
    """Return the tokens of a sliding window that is shorter than the context; None without one."""
    given = {"sliding_window": facts.get("window"), **text}
    if given["sliding_window"] is None or text.get("use_sliding_window") is False:
        return None
    window = whole_number(given, "sliding_window")
    longest = None if text.get(_POSITIONS) is None else whole_number(text, _POSITIONS)
    return None if longest is not None and window >= longest else window


def _varies(text: Mapping[str, Any]) -> bool:
    """Return whether a key says that layers differ in a way that the counts of `_cache` leave out."""
    return any(text.get(key) for key in _KINDS if key not in (_LATENT, _HYBRID, *_LATENT_PARTS))


def _cache(text: Mapping[str, Any], window: int | None) -> CacheLayers | None:
    """Return the layers of the KV cache, as far as they are counted; None if each of them holds every token."""
    kinds = text.get("layer_types")
    if text.get("num_hidden_layers") is None:
        return CacheLayers(0)
    layers = whole_number(text, "num_hidden_layers")
    if text.get(_LATENT):
        rotated = whole_number(text, _ROTATED) if text.get(_ROTATED) else 0
        return CacheLayers(layers, latent=whole_number(text, _LATENT) + rotated)
    if isinstance(kinds, list):
        sliding, full = kinds.count(_SLIDING), sum(kind in _FULL for kind in kinds)
        if window is None and text.get("sliding_window") is not None:  # as long as the context
            full, sliding = full + sliding, 0
        return None if full == layers else CacheLayers(full, sliding, window or 0)
    if text.get(_HYBRID):
        return CacheLayers(layers // whole_number(text, _HYBRID))
    if window is None:
        return None
    pattern = next((text[key] for key in _PATTERNS if isinstance(text.get(key), int) and text[key] > 0), None)
    full = 0 if pattern is None else layers // pattern
    return CacheLayers(full, layers - full, window)
