"""Shapes of models: the class, and the known ones (`models.yaml`), for use without the model's own `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from search_spaces.catalogue.quantization import FULL_BITS, stored_format
from search_spaces.errors import SpaceError
from search_spaces.yaml_file import read_yaml

_FILE = Path(__file__).with_name("models.yaml")
_FIELDS_WITHOUT_QUANTIZATION = 10
_UNKNOWN_BITS = 4
"""Bits of a weight that are assumed for a quantized checkpoint that does not state them: the fewest of common ones."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Keys of vLLM's `config/speculative.py` for layers that predict further tokens."""


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder, as in its `config.json`.

    Attributes:
        layers: number of layers.
        hidden: size of the hidden state.
        intermediate: size of the MLP's intermediate state.
        heads: number of query heads.
        kv_heads: number of key-value heads.
        head_dim: size of a head.
        vocab: size of the vocabulary.
        max_position_embeddings: tokens of the longest context.
        tied: whether the output head is the token embedding.
        dtype: the checkpoint's number format.
        quantization: the checkpoint's quantization method; None if it is not quantized.
        weight_bits, activation_bits, weight_type: of a quantized checkpoint's linear layers, as far as it states them
            (`StoredFormat`).
        experts: number of experts of a layer; 0 for a dense model.
        draft_layers: layers that predict further tokens (multi-token prediction, MTP); 0 without.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position_embeddings: int
    tied: bool
    dtype: str
    quantization: str | None
    weight_bits: int | None = None
    activation_bits: int | None = None
    weight_type: str | None = None
    experts: int = 0
    draft_layers: int = 0

    @property
    def stored_bits(self) -> int:
        """Bits of a weight in a linear layer: 16 without quantization, and 4 if a quantized checkpoint states none."""
        if self.quantization is None:
            return FULL_BITS
        return _UNKNOWN_BITS if self.weight_bits is None else self.weight_bits

    @classmethod
    def from_config_json(cls, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape from a Hugging Face `config.json` (its `text_config` if it has one).

        Raises:
            SpaceError: with the first key that is missing, or with the impossible value.
        """
        try:
            text: Mapping[str, Any] = config.get("text_config") or config
            heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
            stored = stored_format(config.get("quantization_config") or {})
            return cls(
                layers=int(text["num_hidden_layers"]),
                hidden=hidden,
                intermediate=int(text["intermediate_size"]),
                heads=heads,
                kv_heads=int(text.get("num_key_value_heads") or heads),
                head_dim=int(text.get("head_dim") or hidden // heads),
                vocab=int(text["vocab_size"]),
                max_position_embeddings=int(text["max_position_embeddings"]),
                tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
                dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "float32"),
                quantization=stored.method,
                weight_bits=stored.weight_bits,
                activation_bits=stored.activation_bits,
                weight_type=stored.weight_type,
                experts=_first(text, _EXPERTS),
                draft_layers=_first(text, _DRAFT_LAYERS),
            )
        except KeyError as error:
            raise SpaceError(
                f"the model's config.json has no {error.args[0]!r}; give a decoder's config.json"
            ) from None
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise SpaceError(f"the model's config.json is not valid ({error}); give a decoder's config.json") from None

    def weight_bytes(self, bits: int) -> int:
        """Return the bytes of all weights, with `bits` per weight in the linear layers and at least 16 in the rest.

        With hidden size h, head size d, n query heads, k key-value heads, intermediate size f, L layers and vocabulary
        V, the linear layers have L (h d (2 n + 2 k) + 3 h f) weights. The rest is the token embedding and an untied
        head (V h each) and the norms, h (2 L + 1). Biases and scales are left out, so the result is slightly low.
        """
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        linear = self.layers * (attention + 3 * self.hidden * self.intermediate)
        rest = self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden * (2 * self.layers + 1)
        return (linear * bits + rest * max(bits, 16)) // 8

    def kv_bytes_per_token(self, bytes_per_element: float) -> int:
        """Return the KV cache's bytes of one token: 2 × layers × kv_heads × head_dim × bytes per element."""
        return int(2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element)


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    """Return the first of the numbers that is there; 0 without any."""
    return next((int(config[key]) for key in keys if config.get(key) is not None), 0)


@cache
def known_models() -> dict[str, ModelShape]:
    """Return the shapes of known models by their name on the Hugging Face hub."""
    raw = read_yaml(_FILE).data
    return {
        name: ModelShape(*facts, *(() if len(facts) > _FIELDS_WITHOUT_QUANTIZATION else (None,)))
        for name, facts in raw.items()
    }


def known_model(name: str) -> ModelShape | None:
    """Return the shape of a model by its name on the hub; None if it is not a known one."""
    return known_models().get(name)
