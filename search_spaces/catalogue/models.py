"""Shapes of models: the class, and the known ones (`models.yaml`), for use without the model's own `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Mlp, Recurrent
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
_STATE_BYTES = 2
"""Bytes of a number of a recurrent layer's state, unless the model says otherwise."""
_DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Keys of vLLM's `config/speculative.py` for layers that predict further tokens."""


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder, as in its `config.json`, and what of the file is not understood.

    `hidden` and `intermediate` are sizes of the state and of the MLP's, `heads` are those of queries. Where layers
    differ, `heads`, `kv_heads` and `head_dim` are those that config.json names first, and `groups` has each kind.

    Attributes:
        decoder: the layers by kind; None for `layers` equal ones of full attention with a gated MLP.
        beside: weights beside the decoder's layers, embedding and head, such as an encoder's, which stay at 16 bits.
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
    decoder: tuple[LayerGroup, ...] | None = None
    beside: int = 0

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """The decoder's layers by kind."""
        if self.decoder is not None:
            return self.decoder
        attention = Attention(self.heads, self.kv_heads, self.head_dim)
        return (LayerGroup(self.layers, attention, Mlp(self.intermediate)),)

    @property
    def is_mixture_of_experts(self) -> bool:
        """Whether a layer has experts."""
        return any(isinstance(group.mlp, Experts) for group in self.groups)

    @property
    def has_latent_attention(self) -> bool:
        """Whether a layer's cache holds one latent vector of a token (MLA)."""
        return any(isinstance(group.mixer, LatentAttention) for group in self.groups)

    @property
    def has_recurrent_layers(self) -> bool:
        """Whether a layer keeps a state of fixed size for each sequence (linear attention, Mamba)."""
        return any(isinstance(group.mixer, Recurrent) for group in self.groups)

    @property
    def has_windows(self) -> bool:
        """Whether a layer's attention sees a window of the tokens before it."""
        return any(isinstance(group.mixer, Attention) and group.mixer.window for group in self.groups)

    @property
    def linear_weights(self) -> int:
        """Weights of the matrices of all layers (`layers.py` has the equations)."""
        return sum(group.weights(self.hidden) for group in self.groups)

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
        """Return the bytes of all weights, with `bits` per weight in the layers' matrices and at least 16 in the rest.

        The rest is the token embedding and an untied head (vocabulary × hidden each), two norms of a layer and one
        after them, and `beside`. Biases and scales are left out, so the result is slightly low.
        """
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        rest = embeddings + self.hidden * (2 * self.layers + 1) + self.beside
        return (self.linear_weights * bits + rest * max(bits, 16)) // 8

    def kv_bytes_per_token(self, bytes_per_element: float) -> int:
        """Return the bytes of KV cache that one more token of a long sequence takes.

        Each layer without a window holds 2 × kv_heads × head_dim numbers of it, or one latent vector.
        """
        return int(sum(group.count * _held(group, 2**62, 1) for group in self.groups) * bytes_per_element)

    def least_kv_bytes(self, tokens: int, bytes_per_element: float) -> int:
        """Return the bytes that one sequence of so many tokens certainly holds in the cache of all layers.

        A layer with a window holds min(tokens, window) of them, and a recurrent layer its state, whose numbers have
        16 bits unless the model says otherwise.
        """
        paged = sum(group.count * _held(group, tokens, tokens) for group in self.groups) * bytes_per_element
        return int(paged) + sum(group.count * _state_bytes(group.mixer) for group in self.groups)


def _held(group: LayerGroup, tokens: int, last: int) -> int:
    """Return the numbers of the `last` of `tokens` tokens that one layer's cache holds."""
    mixer = group.mixer
    if mixer is None:
        return 0
    window = mixer.window if isinstance(mixer, Attention) else None
    kept = last if window is None else max(0, min(last, window - (tokens - last)))
    return mixer.cached * kept


def _state_bytes(mixer: Attention | LatentAttention | Recurrent | None) -> int:
    if not isinstance(mixer, Recurrent):
        return 0
    return mixer.state * (mixer.state_bytes or _STATE_BYTES) + mixer.convolved * _STATE_BYTES


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
