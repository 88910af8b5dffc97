"""Count the weights of a multimodal model's encoders, which stay at 16 bits, as far as its config.json says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.catalogue.decoder import HIDDEN, LAYERS, mapping_at
from search_spaces.catalogue.model_config import Keys

_DEPTH = (*LAYERS, "depth", "vt_num_hidden_layers")
_WIDTH = ("embed_dim", "hidden_size", "vt_hidden_size")
_INNER = ("intermediate_size", "vt_intermediate_size")
_GATED = ("qwen2_5_vl", "pixtral", "gemma4_vision", "glm4v", "glm4v_moe", "glm_ocr_vision")
"""Types of encoders whose MLP has three matrices."""
_LANGUAGE_INPUTS = ("hidden_size_per_layer_input", "vocab_size_per_layer_input")


def encoder_weights(config: Mapping[str, Any], keys: Keys) -> int:
    """Return the weights beside a decoder, a lower bound: a vision encoder's matrices, and embeddings of each layer.

    An encoder of hidden size h has 4 h² + m h f weights in a layer, with m matrices of its MLP of size f. Its patches,
    positions and projector, and encoders of sound, are left out. Gemma 3n and 4 have another embedding of p numbers for
    each of L layers: V L p + h L p + 2 L h p.
    """
    return _vision(config) + _layer_inputs(keys)


def _vision(config: Mapping[str, Any]) -> int:
    outer = mapping_at(config, "thinker_config") or config
    vision = Keys(mapping_at(outer, "vision_config"))
    kind = vision.get("model_type")
    depth, width = vision.get(*_DEPTH), vision.get(*_WIDTH)
    inner, ratio = vision.get(*_INNER), vision.get("mlp_ratio")
    if not isinstance(depth, int) or not isinstance(width, int):
        return 0
    if not isinstance(inner, int):
        inner = int(width * ratio) if isinstance(ratio, int | float) else 0
    return depth * width * (4 * width + (3 if kind in _GATED else 2) * inner)


def _layer_inputs(keys: Keys) -> int:
    size = keys.amount(_LANGUAGE_INPUTS[0])
    if not size:
        return 0
    hidden, layers = keys.count(*HIDDEN), keys.count(*LAYERS)
    return layers * size * (keys.count(_LANGUAGE_INPUTS[1], "vocab_size") + 3 * hidden)
