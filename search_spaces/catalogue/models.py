"""Shapes of models: the class, and the known ones (`models.json`), for use without the model's own `config.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search_spaces.catalogue.context_length import find_context_length, rotated_positions
from search_spaces.catalogue.decoder import (
    EXPERTS,
    HEADS,
    HIDDEN,
    LAYERS,
    MLP,
    Layer,
    grouped,
    head_dim_of,
    keys_of,
    kv_heads_of,
    mapping_at,
    mlp_size,
    model_type,
    read_layers,
    require_known,
)
from search_spaces.catalogue.derived_names import derivations
from search_spaces.catalogue.encoders import encoder_weights
from search_spaces.catalogue.formats import (
    FULL_BITS,
    StoredFormat,
    declared_format,
    mean_bits,
    of_quant_file,
    stored_format,
)
from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Mlp, Recurrent
from search_spaces.catalogue.model_config import Keys, NotUnderstood, Unread, number
from search_spaces.errors import SpaceError
from search_spaces.yaml_file import read_regular_file

_FILE = Path(__file__).with_name("models.json")
_UNKNOWN_BITS = 4
"""Bits of a weight that are assumed for a quantized checkpoint that does not state them: the fewest of common ones."""
_DECODERS = ("text_config", "llm_config", "language_config")
"""Keys of the part of a multimodal model's config.json that describes its decoder."""
_OUTER = "thinker_config"
"""Key of the part of an omni model's config.json that has the part for its decoder."""
_QUANT_FILE = "hf_quant_config.json"
"""ModelOpt's file beside config.json."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_CONFIG_LIMIT = 2**24
"""The largest file of a model's configuration, in bytes."""
_NO_YARN_FACTOR = (0, 32)
"""The version of vLLM (pull request 56446) that takes `max_position_embeddings` of a model with YaRN as it is."""
_DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys of vLLM's `config/speculative.py` for layers that predict further tokens."""
_MOE_MLP = "moe_intermediate_size"


@dataclass(frozen=True)
class PartBits:
    """Bits of a weight with its scales, by the part of the decoder that it is in: the mean over layers.

    Embeddings, routers, norms and encoders have at least 16 bits; `head` is the output head's, if it has weights of
    its own.
    """

    attention: float = FULL_BITS
    recurrent: float = FULL_BITS
    mlp: float = FULL_BITS
    shared: float = FULL_BITS
    experts: float = FULL_BITS
    head: float = FULL_BITS


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder, as in its `config.json`, and what of the file is not understood.

    `hidden` and `intermediate` are sizes of the state and of the MLP's, `heads` are those of queries. Where layers
    differ, `heads`, `kv_heads` and `head_dim` are those that config.json names first, and `groups` has each kind.

    Attributes:
        decoder: the layers by kind, none if they are not understood; None for `layers` equal ones of full attention
            with a gated MLP.
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
        yarn_context: tokens of the longest context before vLLM 0.32 for a model with YaRN; None without YaRN.
        default_context: tokens of the context without `--max-model-len`, where they are fewer; None: the longest.
        unread: what is not understood, by the key of config.json; None for a model that is read in full.
        bits: of a quantized checkpoint's weights by part; None: `stored_bits` in all layers.
        rotations: numbers in the engine's tables of rotations, which are loaded with the weights.
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
    yarn_context: int | None = None
    default_context: int | None = None
    unread: Unread | None = None
    decoder: tuple[LayerGroup, ...] | None = None
    beside: int = 0
    bits: PartBits | None = None
    rotations: int = 0

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
    def has_chunks(self) -> bool:
        """Whether a layer's attention sees the tokens of a chunk."""
        return any(isinstance(group.mixer, Attention) and group.mixer.chunked for group in self.groups)

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
        unread: Unread | None = None
        try:
            text = _decoder(config)
            keys = keys_of(config, text)
            layers, unread = _layers(config, text, keys)
            stored = stored_format(declared_format(config, text) or quantization)
            facts = {**_sizes(config, text, keys), **_formats(stored, layers, unread, keys)}
            if unread is not None and "tie_word_embeddings" not in {**config, **text}:
                facts["tied"] = True  # the embedding alone is certain
            plain = cls(**facts, beside=encoder_weights(config, keys))
            groups = grouped(layers)
            return plain if groups == plain.groups else replace(plain, decoder=groups)
        except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError, IndexError) as error:
            if unread is not None:
                raise SpaceError(f"{unread}; give a model that is read (docs/simulator.md)") from None
            if isinstance(error, KeyError):
                raise SpaceError(f"config.json lacks {error.args[0]}; write the key into the file") from None
            raise SpaceError(f"config.json is not valid ({error}); give a decoder's config.json") from None

    def longest_context(self, version: tuple[int, ...] | None) -> int:
        """Return the tokens of the longest context in a version of vLLM; None: the most of any version."""
        if self.yarn_context is None:
            return self.max_position_embeddings
        if version is None:
            return max(self.max_position_embeddings, self.yarn_context)
        return self.yarn_context if version < _NO_YARN_FACTOR else self.max_position_embeddings

    def weight_bytes(self, bits: float | None = None) -> int:
        """Return the bytes of all weights, with `bits` per weight in the layers' matrices and at least 16 in the rest.

        Without `bits`, the matrices have those of the checkpoint, which differ by part, and their scales. The rest is
        the token embedding and an untied head (vocabulary × hidden each), routers, two norms of a layer and one after
        them, and `beside`. Biases are left out, so the result is slightly low, and layers that are not understood.
        """
        full, own = max(bits or 0, FULL_BITS), self._bits(bits)
        return int(self.matrix_bytes(own, full) + self.weights_beside * full / 8 - self.head_savings(own, full))

    def head_savings(self, bits: PartBits, full: float = FULL_BITS) -> float:
        """Return the bytes by which a quantized output head is smaller than one of `full` bits."""
        return 0.0 if self.tied else self.vocab * self.hidden * (full - bits.head) / 8

    @property
    def weights_beside(self) -> int:
        """Weights beside the layers' matrices: the embedding and an untied head, norms, and `beside`."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.hidden * (2 * self.layers + 1) + self.beside

    def matrix_bytes(self, bits: PartBits, full: float = FULL_BITS) -> float:
        """Return the bytes of the matrices of all layers; routers have `full` bits."""
        return sum(group.count * _layer_bits(group, self.hidden, bits, full) for group in self.groups) / 8

    def expert_bytes(self, bits: float | None = None) -> int:
        """Return the bytes of the experts that routers choose from; `bits` as for `weight_bytes`."""
        own = self._bits(bits).experts
        experts = ((group.count, group.mlp) for group in self.groups if isinstance(group.mlp, Experts))
        return int(sum(count * mlp.count * mlp.of_one(self.hidden) for count, mlp in experts) * own) // 8

    def _bits(self, bits: float | None) -> PartBits:
        if bits is None and self.bits is not None:
            return self.bits
        own = float(self.stored_bits if bits is None else bits)
        return PartBits(own, own, own, own, own, max(own, FULL_BITS))

    @property
    def has_known_weights(self) -> bool:
        """Whether the formats of the checkpoint's weights are understood."""
        return self.quantization is None or self.bits is not None or self.unread is None

    @property
    def parameters(self) -> int:
        """Weights of the matrices, embeddings, norms and encoders."""
        return self.weight_bytes(FULL_BITS) // 2

    def kv_bytes_per_token(self, bytes_per_element: float) -> int:
        """Return the bytes of KV cache that one more token of a long sequence takes.

        Each layer without a window holds 2 × kv_heads × head_dim numbers of it, or one latent vector and the bytes of
        an indexer.
        """
        numbers = sum(group.count * _held(group, 2**62, 1) for group in self.groups)
        return int(numbers * bytes_per_element) + sum(group.count * _index_bytes(group) for group in self.groups)

    def least_kv_bytes(self, tokens: int, bytes_per_element: float, tensor: int = 1) -> int:
        """Return the bytes that a sequence of so many tokens certainly holds in the cache of one of `tensor` GPUs.

        A layer with a window holds min(tokens, window) of them, and a recurrent layer its state, whose numbers have
        16 bits unless the model says otherwise.
        """
        groups = [group if tensor == 1 else group.of_tensor(tensor) for group in self.groups]
        paged = sum(group.count * _held(group, tokens, tokens) for group in groups) * bytes_per_element
        index = tokens * sum(group.count * _index_bytes(group) for group in groups)
        states = ((group.count, group.mixer) for group in groups if isinstance(group.mixer, Recurrent))
        return int(paged) + index + sum(count * mixer.sequence_bytes for count, mixer in states)


def _held(group: LayerGroup, tokens: int, last: int) -> int:
    """Return the numbers of the `last` of `tokens` tokens that one layer's cache holds."""
    mixer = group.mixer
    if mixer is None:
        return 0
    window = mixer.window if isinstance(mixer, Attention) else None
    kept = last if window is None else max(0, min(last, window - (tokens - last)))
    return mixer.cached * kept


def _index_bytes(group: LayerGroup) -> int:
    return group.mixer.index_bytes if isinstance(group.mixer, LatentAttention) else 0


def _layer_bits(group: LayerGroup, hidden: int, bits: PartBits, full: float) -> float:
    total = 0.0
    if group.mixer is not None:
        own = bits.recurrent if isinstance(group.mixer, Recurrent) else bits.attention
        total += group.mixer.weights(hidden) * own
    if isinstance(group.mlp, Experts):
        router = group.mlp.router(hidden)
        total += group.mlp.count * group.mlp.of_one(hidden) * bits.experts
        total += (group.mlp.common(hidden) - router) * bits.shared + router * full
    elif group.mlp is not None:
        total += group.mlp.weights(hidden) * bits.mlp
    return total


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


def _decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    outer = mapping_at(config, _OUTER) or config
    parts = (outer.get(key) for key in _DECODERS)
    return next((part for part in parts if isinstance(part, Mapping) and part), outer)


def _layers(config: Mapping[str, Any], text: Mapping[str, Any], keys: Keys) -> tuple[list[Layer], Unread | None]:
    """Return the layers of a decoder, none if they are not understood, and what is not."""
    try:
        require_known(model_type(config, text), keys)
        return read_layers(keys), None
    except NotUnderstood as error:
        return [], error.unread


def _sizes(config: Mapping[str, Any], text: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Return the sizes in a config.json.

    Raises:
        KeyError: for one that is missing or null, and that the class does not fill in.
        TypeError, ValueError: for an impossible one.
    """
    hidden = keys.count(*HIDDEN)
    # a model without attention has no heads that tensor parallelism would have to divide
    heads = keys.count(*HEADS, default=hidden if keys.facts.get("blocks") == "mixer" else None)
    context = find_context_length(keys, f"{config.get('model_type')} {text.get('model_type')}")
    experts = keys.get(*EXPERTS)
    experts = max(experts, default=0) if isinstance(experts, list) else experts or 0
    head_dim = head_dim_of(keys, heads)
    rotated = keys.get("qk_rope_head_dim") or int(head_dim * number(keys.given, "partial_rotary_factor", 1.0))
    own = text.get("tie_word_embeddings", config.get("tie_word_embeddings", text.get("tie_embedding")))
    drafts = next((int(text[key]) for key in _DRAFT_LAYERS if isinstance(text.get(key), int)), 0)
    dtypes = (part.get(key) for part in (text, config) for key in ("dtype", "torch_dtype"))
    return {
        "layers": _count_of_layers(keys),
        "hidden": hidden,
        "intermediate": _intermediate(keys),
        "heads": heads,
        "kv_heads": kv_heads_of(keys, heads),
        "head_dim": head_dim,
        # an EAGLE-3 head chooses from fewer tokens than the model whose embedding it shares
        "vocab": keys.count("draft_vocab_size", default=keys.count("vocab_size", "padded_vocab_size")),
        "max_position_embeddings": context.longest,
        "yarn_context": context.yarn,
        "default_context": context.default,
        "tied": bool(keys.get("tie_word_embeddings") if own is None else own),
        "dtype": str(next((each for each in dtypes if each), "float32")),
        "experts": experts if experts > 1 else 0,
        "draft_layers": drafts or int(keys.facts.get("draft_layers", 0)),
        "rotations": rotated_positions(keys) * rotated,
    }


def _count_of_layers(keys: Keys) -> int:
    pattern = keys.given.get("hybrid_override_pattern") or keys.given.get("layers_block_type")
    return len(pattern) if isinstance(pattern, str | list) else keys.count(*LAYERS)


def _intermediate(keys: Keys) -> int:
    """Return the intermediate size of an MLP, of a layer's experts without one, or of the widest layer."""
    given = keys.get(*MLP)
    if isinstance(given, list) or isinstance(keys.get("block_configs"), list):
        return max((layer.intermediate for _, layer in read_layers(keys) if layer is not None), default=0)
    if given is None and keys.get(_MOE_MLP) is not None:
        return keys.count(_MOE_MLP)
    if given is None and keys.facts.get("blocks") == "mixer":
        return keys.count(*HIDDEN)
    return mlp_size(keys)


def _formats(stored: StoredFormat, layers: Sequence[Layer], unread: Unread | None, keys: Keys) -> dict[str, Any]:
    """Return the formats of a checkpoint, and what of both is not read."""
    quantization = None if stored.unread is None else Unread("this quantization", stored.unread)
    return {
        "quantization": stored.method,
        "weight_bits": stored.weight_bits,
        "activation_bits": stored.activation_bits,
        "weight_type": stored.weight_type,
        "weight_blocks": stored.blocks,
        "cache_bits": stored.cache_bits,
        "unread": unread or quantization,
        "bits": None if stored.bits_of is None or stored.unread is not None else _part_bits(stored, layers, keys),
    }


_ATTENTION = ("self_attn", "attn", "attention", "mixer")
_RECURRENT = ("linear_attn", "mixer", "mamba", "conv", "self_attn")
_INPUTS = ("in_proj", "in_proj_qkvz", "in_proj_qkv", "q_proj")
_MLPS = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "mixer")
_WIDENING = ("gate_proj", "up_proj", "w1", "w3", "gate_up_proj")
_NARROWING = ("down_proj", "w2")
_SHARED = ("shared_experts", "shared_expert", "shared_mlp")
_PARTS = ("attention", "recurrent", "mlp", "shared", "experts")
"""Parts of a layer (`PartBits`)."""

Modules = Iterator[tuple[str, int, list[str]]]


def _part_bits(stored: StoredFormat, layers: Sequence[Layer], keys: Keys) -> PartBits:
    """Return the mean bits of a weight in each part, by the names that checkpoints give to its modules."""
    hidden, inside = keys.count(*HIDDEN), keys.facts.get("experts_in")
    parts: dict[str, list[tuple[int, list[str]]]] = {part: [] for part in _PARTS}
    for layer, (mixer, mlp) in enumerate(layers):
        for part, weights, names in (*_mixer_modules(mixer, hidden), *_mlp_modules(mlp, inside)):
            parts[part].append((weights, [f"layers.{layer}.{name}" for name in names]))
    bits_of = stored.bits_of or (lambda _: FULL_BITS)
    means = {part: mean_bits(bits_of, modules) for part, modules in parts.items()}
    return PartBits(**means, head=stored.head_bits)


def _mixer_modules(mixer: Attention | LatentAttention | Recurrent | None, hidden: int) -> Modules:
    """Yield the modules of a mixer: the part, the weights, and the names that a module may have."""
    if isinstance(mixer, Recurrent):
        yield "recurrent", 2, _inside(_RECURRENT, _INPUTS)
        yield "recurrent", 1, _inside(_RECURRENT, ("out_proj", "o_proj"))
    elif isinstance(mixer, LatentAttention):
        head = mixer.plain_dim + mixer.rotated_dim
        yield (
            "attention",
            mixer.heads * head * (mixer.query_rank or hidden),
            _inside(_ATTENTION, ("q_b_proj", "q_proj")),
        )
        yield "attention", mixer.absorbed, _inside(_ATTENTION, ("kv_b_proj",))
        yield "attention", mixer.heads * mixer.value_dim * hidden, _inside(_ATTENTION, ("o_proj",))
    elif mixer is not None:
        for weights, name in ((mixer.heads, "q_proj"), (mixer.kv_heads, "k_proj"), (mixer.kv_heads, "v_proj")):
            yield "attention", weights, _inside(_ATTENTION, (name,))
        yield "attention", mixer.heads, _inside(_ATTENTION, ("o_proj",))


def _mlp_modules(mlp: Mlp | Experts | None, inside: str | None) -> Modules:
    """Yield the modules of an MLP or of experts, as `_mixer_modules`."""
    if mlp is None:
        return
    for weights, names in ((mlp.matrices - 1, _WIDENING), (1, _NARROWING)):
        if isinstance(mlp, Experts):
            experts = [inside] if inside else [f"{each}.experts" for each in _MLPS]
            shared = ["mlp"] if inside else [f"{each}.{name}" for each in _MLPS for name in _SHARED]
            yield "experts", weights, _inside([f"{each}.0" for each in experts], names)
            yield "shared", weights, _inside(shared, names)
        else:
            yield "mlp", weights, _inside(_MLPS, names)


def _inside(modules: Sequence[str], names: Sequence[str]) -> list[str]:
    return [f"{module}.{name}" for module in modules for name in names]


@cache
def known_configs() -> dict[str, dict[str, Any]]:
    """Return the configurations of known models by their name on the Hugging Face hub.

    Each has `config`, the values of config.json that are read, and may have `quantization`, those of
    hf_quant_config.json, and `source`. In the file, `like` names a model whose values are the same but for those given.
    """
    entries: dict[str, dict[str, Any]] = json.loads(_FILE.read_text())
    for entry in entries.values():
        while "like" in entry:
            base = entries[entry.pop("like")]
            entry["config"] = {**base.get("config", {}), **entry.get("config", {})}
            entry.update({key: base[key] for key in ("like", "quantization") if key in base})
    return entries


class _KnownModels(Mapping[str, ModelShape]):
    """The shapes of known models by name, each read when it is first asked for."""

    def __getitem__(self, name: str) -> ModelShape:
        return _known(name)

    def __iter__(self) -> Iterator[str]:
        return iter(known_configs())

    def __len__(self) -> int:
        return len(known_configs())


@cache
def _known(name: str) -> ModelShape:
    return _of_entry(known_configs()[name])


def _of_entry(entry: Mapping[str, Any]) -> ModelShape:
    quantization = entry.get("quantization")
    return ModelShape.from_config_json(entry["config"], of_quant_file(quantization) if quantization else _NOTHING)


def known_models() -> Mapping[str, ModelShape]:
    """Return the shapes of known models by their name on the Hugging Face hub."""
    return _KnownModels()


@cache
def known_model(name: str) -> ModelShape | None:
    """Return the shape of a model by its name on the hub; None if it is neither a known one nor derived from one."""
    if name in known_configs():
        return _known(name)
    for each in derivations(name, known_configs()):
        entry, shape = known_configs()[each.base], _known(each.base)
        plain = not (shape.has_latent_attention or shape.has_recurrent_layers)
        holds = plain if each.kinds is None else entry["config"]["model_type"] in each.kinds
        if holds and shape.unread is None and shape.quantization is None:
            return _of_entry({"config": {**entry["config"], **each.config}, "quantization": each.quantization})
    return None
