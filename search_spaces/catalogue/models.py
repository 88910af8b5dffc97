"""Shapes of models: the class, and the known ones (`models.yaml`), for use without the model's own `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search_spaces.catalogue.model_config import (
    EXPERTS,
    FULL_BITS,
    Architecture,
    CacheLayers,
    StoredFormat,
    Unread,
    declared_format,
    find_context_length,
    of_quant_file,
    read_architecture,
    stored_format,
    whole_number,
)
from search_spaces.errors import SpaceError
from search_spaces.yaml_file import read_regular_file, read_yaml

_FILE = Path(__file__).with_name("models.yaml")
_ORDERED = 11
"""Fields of `ModelShape` up to the quantization."""
_UNKNOWN_BITS = 4
"""Bits of a weight that are assumed for a quantized checkpoint that does not state them: the fewest of common ones."""
_MLP, _EXPERT_MLP = "intermediate_size", "moe_intermediate_size"
_DECODERS = ("text_config", "llm_config", "language_config")
"""Keys of the part of a multimodal model's config.json that describes its decoder."""
_QUANT_FILE = "hf_quant_config.json"
"""ModelOpt's file beside config.json."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_CONFIG_LIMIT = 2**24
"""The largest file of a model's configuration, in bytes."""
_NO_YARN_FACTOR = (0, 32)
"""The version of vLLM (pull request 56446) that takes `max_position_embeddings` of a model with YaRN as it is."""
_DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Keys of vLLM's `config/speculative.py` for layers that predict further tokens."""


@dataclass(frozen=True)
class ModelShape:
    """The shape of a dense decoder, as in its `config.json`, and what of the file is beyond such a decoder.

    `hidden` and `intermediate` are sizes of the state and of the MLP's, `heads` are those of queries.

    Attributes:
        max_position_embeddings: tokens of the longest context; see `longest_context`.
        tied: whether the output head is the token embedding.
        dtype: the checkpoint's number format.
        quantization: the checkpoint's quantization method; None if it is not quantized.
        weight_bits, activation_bits, weight_type: of a quantized checkpoint's linear layers, as far as it states them
            (`StoredFormat`).
        experts: number of experts of a layer; 0 for a dense model.
        draft_layers: layers that predict further tokens (multi-token prediction, MTP); 0 without.
        weight_blocks: whether quantized weights have their scales by blocks.
        cache_bits: bits of a number in the KV cache that the checkpoint asks for; None: those of the arithmetic.
        cache: the layers of the KV cache, as far as they are certain; None if each of them holds every token.
        has_known_weights: whether `weight_bytes` holds.
        yarn_context: tokens of the longest context before vLLM 0.32 for a model with YaRN; None without YaRN.
        default_context: tokens of the context without `--max-model-len`, where they are fewer; None: the longest.
        unread: what the simulator has no model of, by the key of config.json; None for a dense decoder.
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
    weight_blocks: bool = False
    cache_bits: int | None = None
    cache: CacheLayers | None = None
    has_known_weights: bool = True
    yarn_context: int | None = None
    default_context: int | None = None
    unread: Unread | None = None

    @property
    def stored_bits(self) -> int:
        """Bits of a weight in a linear layer: 16 without quantization, and 4 if a quantized checkpoint states none."""
        if self.quantization is None:
            return FULL_BITS
        return _UNKNOWN_BITS if self.weight_bits is None else self.weight_bits

    @classmethod
    def from_file(cls, file: Path) -> ModelShape:
        """Return the shape from a `config.json` and the `hf_quant_config.json` beside it, if there is one.

        Raises:
            SpaceError: as `from_config_json`, and if the file cannot be read.
        """
        quant_file = file.parent / _QUANT_FILE
        quantization = of_quant_file(read_object(quant_file)) if quant_file.is_file() else {}
        return cls.from_config_json(read_object(file), quantization)

    @classmethod
    def from_config_json(cls, config: Mapping[str, Any], quantization: Mapping[str, Any] = _NOTHING) -> ModelShape:
        """Return the shape from a Hugging Face `config.json` (its `text_config` if it has one).

        `quantization` counts where the file has no `quantization_config`.

        Raises:
            SpaceError: with the first key that is missing, or with the impossible value.
        """
        architecture: Architecture | None = None
        try:
            text = _decoder(config)
            architecture = read_architecture(config, text)
            stored = stored_format(declared_format(config, text) or quantization)
            return cls(**_sizes(config, text, architecture), **_formats(architecture, stored))
        except KeyError as error:
            raise _lacking(str(error.args[0]), architecture) from None
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            if architecture is not None and not architecture.dense:
                raise SpaceError(f"{architecture.unread}; give a dense decoder's config.json") from None
            raise SpaceError(f"config.json is not valid ({error}); give a decoder's config.json") from None

    def longest_context(self, version: tuple[int, ...] | None) -> int:
        """Return the tokens of the longest context in a version of vLLM; None: the most of any version."""
        if self.yarn_context is None:
            return self.max_position_embeddings
        if version is None:
            return max(self.max_position_embeddings, self.yarn_context)
        return self.yarn_context if version < _NO_YARN_FACTOR else self.max_position_embeddings

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

    def least_kv_bytes(self, tokens: int, bytes_per_element: float) -> int:
        """Return the bytes of one sequence's KV cache that are certain.

            full layers × tokens + windowed layers × min(tokens, window)     each times the bytes of a token in a layer

        A token has 2 × kv_heads × head_dim numbers in a layer, or one latent vector.
        """
        cache = self.cache or CacheLayers(self.layers)
        held = cache.full * tokens + cache.windowed * min(tokens, cache.window)
        return int(held * (cache.latent or 2 * self.kv_heads * self.head_dim) * bytes_per_element)


def read_object(file: Path) -> dict[str, Any]:
    """Return the object of a JSON file."""
    try:
        data = json.loads(read_regular_file(file, _CONFIG_LIMIT))
    except OSError as error:
        raise SpaceError(f"{file.name} cannot be read ({error.strerror}); check the file") from None
    except (ValueError, RecursionError):
        raise SpaceError(f"{file.name} is not valid JSON; download it again") from None
    if not isinstance(data, dict):
        raise SpaceError(f"{file.name} has no JSON object; download it again")
    return data


def _lacking(key: str, architecture: Architecture | None) -> SpaceError:
    """Return the error for a missing key, which another model than a dense decoder may leave out."""
    unread = None if architecture is None else architecture.unread
    if architecture is not None and not architecture.dense:
        return SpaceError(f"{unread}; give a dense decoder's config.json")
    beside = "" if unread is None else f", and has {unread.key} ({unread.kind})"
    return SpaceError(f"config.json lacks {key}{beside}; write the key into the file")


def _decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json for the decoder."""
    parts = (config.get(key) for key in _DECODERS)
    return next((part for part in parts if isinstance(part, Mapping) and part), config)


def _sizes(config: Mapping[str, Any], text: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    """Return the sizes in a config.json.

    Raises:
        KeyError: for one that is missing or null, and whose default is the class's own.
        TypeError, ValueError: for an impossible one.
    """
    heads, hidden = whole_number(text, "num_attention_heads"), whole_number(text, "hidden_size")
    context = find_context_length(config, text)
    for key in architecture.fills:
        whole_number(text, key)
    experts = _first(text, EXPERTS)
    own = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return {
        "layers": whole_number(text, "num_hidden_layers"),
        "hidden": hidden,
        "intermediate": whole_number(text, _MLP if text.get(_MLP) is not None or not experts else _EXPERT_MLP),
        "heads": heads,
        "kv_heads": heads if text.get("num_key_value_heads") is None else whole_number(text, "num_key_value_heads"),
        "head_dim": hidden // heads if text.get("head_dim") is None else whole_number(text, "head_dim"),
        "vocab": whole_number(text, "vocab_size"),
        "max_position_embeddings": context.longest,
        "yarn_context": context.yarn,
        "default_context": context.default,
        "tied": architecture.tied if own is None else bool(own),
        "dtype": str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "float32"),
        "experts": experts if experts > 1 else 0,
        "draft_layers": _first(text, _DRAFT_LAYERS),
    }


def _formats(architecture: Architecture, stored: StoredFormat) -> dict[str, Any]:
    """Return the formats of a checkpoint, and what of both is not read."""
    quantization = None if stored.unread is None else Unread("this quantization", stored.unread)
    return {
        "quantization": stored.method,
        "weight_bits": stored.weight_bits,
        "activation_bits": stored.activation_bits,
        "weight_type": stored.weight_type,
        "weight_blocks": stored.blocks,
        "cache_bits": stored.cache_bits,
        "cache": architecture.cache,
        "has_known_weights": architecture.dense and stored.unread is None,
        "unread": architecture.unread or quantization,
    }


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    """Return the first of the whole numbers that is there; 0 without any."""
    return next((int(config[key]) for key in keys if isinstance(config.get(key), int)), 0)


@cache
def known_models() -> dict[str, ModelShape]:
    """Return the shapes of known models by their name on the Hugging Face hub."""
    raw = read_yaml(_FILE).data
    return {name: _known(*facts) for name, facts in raw.items()}


def _known(*facts: Any) -> ModelShape:
    """Return the shape of an entry: values in the order of the fields up to the quantization, and others by name."""
    values, named = (facts[:-1], facts[-1]) if isinstance(facts[-1], Mapping) else (facts, {})
    return ModelShape(*values, *((None,) if len(values) < _ORDERED else ()), **named)


def known_model(name: str) -> ModelShape | None:
    """Return the shape of a model by its name on the hub; None if it is not a known one."""
    return known_models().get(name)
