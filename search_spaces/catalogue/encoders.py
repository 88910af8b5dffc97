"""Count the weights of a multimodal model's encoders, which stay at 16 bits, as far as its config.json says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.catalogue.decoder import HIDDEN, LAYERS, mapping_at
from search_spaces.catalogue.model_config import Keys

_DEPTH = (*LAYERS, "depth", "vt_num_hidden_layers")
_WIDTH = ("embed_dim", "hidden_size", "vt_hidden_size")
_INNER = ("intermediate_size", "vt_intermediate_size")
_GATED = ("qwen2_5_vl", "pixtral", "gemma4_vision", "glm4v", "glm_ocr")
"""How types begin of models whose encoders have an MLP with three matrices."""
_QWEN3: Mapping[str, Any] = {
    **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 3584},
    "spatial_merge_size": 2,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen2_vl": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4},
    "qwen2_5_vl": {"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584},
    "qwen3_vl": {**_QWEN3, "deepstack_visual_indexes": [8, 16, 24]},
    "qwen3_5": _QWEN3,
    "glm4v": {"depth": 24, "hidden_size": 1536, "out_hidden_size": 4096},
}
"""What the encoder's class fills in, by how its type begins (Transformers 5.19): files that Transformers writes have
only what differs from it."""
_LAYER_INPUTS = ("hidden_size_per_layer_input", "vocab_size_per_layer_input")


def encoder_weights(config: Mapping[str, Any], keys: Keys) -> int:
    """Return the weights beside a decoder, a lower bound: a vision encoder's matrices, and embeddings of each layer.

    An encoder of hidden size h has 4 h² + m h f weights in a layer, with m matrices of its MLP of size f. Qwen's
    mergers of s² patches to the decoder's size o have (h s²)² + h s² o each. Patches, positions, other projectors and
    encoders of sound are left out. Gemma 3n and 4 have another embedding of p numbers for each of L layers:
    V L p + h L p + 2 L h p.
    """
    outer = mapping_at(config, "thinker_config") or config
    vision = mapping_at(outer, "vision_config")
    kind = str(vision.get("model_type") or config.get("model_type"))
    own = next((values for name, values in _DEFAULTS.items() if kind.startswith(name)), {}) if vision else {}
    return _vision(Keys({**own, **vision}), kind) + _layer_inputs(keys)


def _vision(vision: Keys, kind: str) -> int:
    depth, width = vision.get(*_DEPTH), vision.get(*_WIDTH)
    if not isinstance(depth, int) or not isinstance(width, int):
        return 0
    inner, ratio = vision.get(*_INNER), vision.get("mlp_ratio")
    if kind.startswith("glm4v"):
        inner = vision.get("out_hidden_size")
    if not isinstance(inner, int):
        inner = int(width * ratio) if isinstance(ratio, int | float) else 0
    layers = depth * width * (4 * width + (3 if kind.startswith(_GATED) else 2) * inner)
    return layers + (_mergers(vision, width) if kind.startswith("qwen") else 0)


def _mergers(vision: Keys, width: int) -> int:
    """Return the weights of the mergers of an encoder of Qwen: one, and one for each layer that passes its state on."""
    out = vision.get("out_hidden_size") or (vision.get("hidden_size") if vision.get("embed_dim") else None)
    if not isinstance(out, int):
        return 0
    wide = width * vision.count("spatial_merge_size", default=2) ** 2
    return (1 + len(vision.get("deepstack_visual_indexes") or ())) * (wide * wide + wide * out)


def _layer_inputs(keys: Keys) -> int:
    size = keys.amount(_LAYER_INPUTS[0])
    if not size:
        return 0
    hidden, layers = keys.count(*HIDDEN), keys.count(*LAYERS)
    return layers * size * (keys.count(_LAYER_INPUTS[1], "vocab_size") + 3 * hidden)
