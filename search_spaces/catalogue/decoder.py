"""Read the layers of a decoder from a `config.json`, by kind.

What a key means depends on the model's class. `architectures.yaml` says what is known of each `model_type`, and
`class_defaults.json` has the values that its class fills in. A model of another type, a value that is not known, and a
key that changes the layers in a way that no equation covers are named; nothing is guessed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Mlp, Recurrent
from search_spaces.catalogue.model_config import Keys, NotUnderstood, shown
from search_spaces.yaml_file import read_yaml

_TYPES_FILE = Path(__file__).with_name("architectures.yaml")
_DEFAULTS_FILE = Path(__file__).with_name("class_defaults.json")

Mixer = Attention | LatentAttention | Recurrent
Layer = tuple[Mixer | None, Mlp | Experts | None]

LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
HIDDEN = ("hidden_size", "d_model", "n_embd", "dim")
HEADS = ("num_attention_heads", "n_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "kv_n_heads", "num_attention_groups")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
MLP = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "block_ff_dim")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
_CHOSEN = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk", "moe_top_k"),
    *("top_k_experts", "num_selected_experts"),
)
_EXPERT_MLP = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size")
_SHARED = ("shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size")
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_FIRST_DENSE = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
_MIXER_KINDS = ("layers_block_type", "layer_types", "layer_type_list")
_PATTERNS = (
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "global_attn_every_n_layers",
    "no_rope_layer_interval",
)
_FULL = ("full_attention", "attention", "global_attention", "indexed_attention", "deepseek_sparse_attention", "global")
_SLIDING = ("sliding_attention", "chunked_attention", "local_attention", "sliding")
_RECURRENT = ("linear_attention", "mamba", "conv", "recurrent", "mamba2")
_UNKNOWN_KEYS = {
    "is_encoder_decoder": "an encoder-decoder",
    "cross_attention_layers": "cross-attention",
    "compress_ratios": "a compressed KV cache",
    "routed_expert_hidden_size": "a model whose experts have a hidden size of their own",
    "num_mem_blocks": "a model whose layers share weights",
    "use_cla": "a model whose layers share keys and values",
    "layer_group_size": "a hybrid of full and linear attention",
}
"""Keys that change the layers in a way that is not known, unless their value is null, false, 0 or empty."""
_MOST_LAYERS = 2048
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@cache
def _types() -> Mapping[str, Any]:
    types: Mapping[str, Any] = read_yaml(_TYPES_FILE).data
    return types


@cache
def _defaults() -> Mapping[str, Any]:
    defaults: Mapping[str, Any] = json.loads(_DEFAULTS_FILE.read_text())
    return defaults


def keys_of(config: Mapping[str, Any], text: Mapping[str, Any]) -> Keys:
    """Return the keys of a decoder with what is known of its class.

    Args:
        config: the whole config.json.
        text: its part for the decoder; the same where it has no such part.
    """
    name = str(model_type(config, text))
    facts: Mapping[str, Any] = _types().get(name) or {}
    name = str(facts.get("like", name))
    facts = _types().get(name) or {}
    nested = {key: value for part in ("attn_config", "ffn_config") for key, value in mapping_at(text, part).items()}
    defaults = {**_defaults().get(name, {}), **facts.get("defaults", {})}
    return Keys({**nested, **text}, defaults, facts)


def model_type(config: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    """Return the decoder's `model_type`; None if the file has none."""
    name = text.get("model_type") or config.get("model_type")
    return None if name is None else str(name)


def mapping_at(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object at a key; an empty one if there is none."""
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def require_known(name: str | None, keys: Keys) -> None:
    """Refuse a decoder of an unknown type, and one with a key that no equation covers.

    Raises:
        NotUnderstood: with the key.
    """
    for key, kind in _UNKNOWN_KEYS.items():
        value = keys.given.get(key)
        if value:
            raise NotUnderstood(kind, key if isinstance(value, Mapping | list) else f"{key} {shown(value)}")
    if name is not None and name not in _types():
        kind = "a model with its own code (auto_map)" if keys.given.get("auto_map") else "a model of this type"
        raise NotUnderstood(kind, f"model_type {shown(name)}")
    if name is None and keys.given.get("auto_map"):
        raise NotUnderstood("a model with its own code", "auto_map without model_type")
    if name is None:
        _require_plain(keys)


def _require_plain(keys: Keys) -> None:
    """Refuse a key of anything but a plain dense decoder, because without a type nothing says what it means."""
    special = (*EXPERTS, "kv_lora_rank", "block_configs", "full_attention_interval", "hybrid_override_pattern")
    for key in (*special, "attn_layer_period", "attn_layer_indices", "mamba_d_state", "num_kv_shared_layers"):
        if keys.given.get(key) not in (None, False, 0, 1):
            raise NotUnderstood("a model without model_type", f"{key} {shown(keys.given[key])}")


def read_layers(keys: Keys) -> list[Layer]:
    """Return the layers of a decoder in their order; one with two mixers, or two MLPs, counts as two.

    Raises:
        KeyError: for a key that is missing or null, and that the class does not fill in.
        NotUnderstood: for a value whose meaning is not known.
        TypeError, ValueError: for an impossible one.
    """
    blocks, kind = keys.get("block_configs"), keys.facts.get("blocks")
    if isinstance(blocks, list):
        return [_block(keys, block) for block in blocks[: _checked(len(blocks), "block_configs")]]
    if kind == "nemotron_h":
        return list(_nemotron_h(keys))
    count = _checked(keys.count(*LAYERS), LAYERS[0])
    if kind == "longcat":
        return list(_longcat(keys, count))
    mixers, mlps = _mixers(keys, count), [_mlp(keys, layer) for layer in range(count)]
    pairs = zip(mixers, mlps, strict=True)
    if kind == "parallel":  # Falcon-H1: attention and a state-space model side by side
        return [layer for mixer, mlp in pairs for layer in ((mixer, None), (_mamba2(keys), mlp))]
    return list(pairs)


def _checked(count: int, key: str) -> int:
    """Return the number of layers."""
    if count > _MOST_LAYERS:
        raise ValueError(f"{count} layers in {key}")
    return count


def grouped(layers: Sequence[Layer]) -> tuple[LayerGroup, ...]:
    """Return equal layers as groups, in the order of the first of each."""
    return tuple(LayerGroup(count, *layer) for layer, count in Counter(layers).items())


def _mixers(keys: Keys, count: int) -> list[Mixer | None]:
    shared = keys.amount("num_kv_shared_layers")
    mixers: list[Mixer | None] = []
    for layer, kind in enumerate(_kinds(keys, count)):
        if kind in _RECURRENT:
            mixers.append(_recurrent(keys))
        elif keys.facts.get("latent") and keys.get("kv_lora_rank") is not None:
            mixers.append(_latent(keys, layer))
        else:
            mixers.append(_attention(keys, kind in _SLIDING, layer >= count - shared))
    return mixers


def _kinds(keys: Keys, count: int) -> list[str]:
    """Return the kind of each layer's mixer: one of `_FULL`, `_SLIDING` or `_RECURRENT`."""
    kinds = keys.get(*_MIXER_KINDS)
    if not isinstance(kinds, list):
        return [_kind(keys, layer, count) for layer in range(count)]
    for kind in kinds:
        if kind not in (*_FULL, *_SLIDING, *_RECURRENT):
            raise NotUnderstood("a model with layers of another kind", f"layer_types {shown(kind)}")
    if len(kinds) < count:
        raise ValueError(f"layer_types with {len(kinds)} of {count} layers")
    return kinds[:count]


def _kind(keys: Keys, layer: int, count: int) -> str:
    """Return the kind of a layer's mixer in a config.json without a list of them."""
    if keys.facts.get("recurrent"):
        return _recurrent_kind(keys, layer)
    if keys.get("hybrid_layer_pattern"):
        return "sliding_attention" if keys.get("hybrid_layer_pattern")[layer] else "full_attention"
    rotated = keys.get("no_rope_layers")
    if rotated and keys.get("attention_chunk_size"):
        return "sliding_attention" if rotated[layer] else "full_attention"
    pattern = keys.get(*_PATTERNS) or keys.facts.get("full_every")
    if isinstance(pattern, str) and pattern:
        return "full_attention" if pattern[layer % len(pattern)].upper() == "G" else "sliding_attention"
    if keys.facts.get("windows_from"):
        return "sliding_attention" if layer >= keys.amount(keys.facts["windows_from"]) else "full_attention"
    if keys.facts.get("full_first_of"):
        return "sliding_attention" if layer % int(keys.facts["full_first_of"]) else "full_attention"
    if pattern:
        is_end = layer == {"first": 0, "last": count - 1}.get(keys.facts.get("full_too", ""))
        return "full_attention" if (layer + 1) % int(pattern) == 0 or is_end else "sliding_attention"
    return "sliding_attention"  # a window, where there is one, is that of all layers


def _recurrent_kind(keys: Keys, layer: int) -> str:
    """Return the kind of a layer's mixer in a hybrid without a list of kinds."""
    full = mapping_at(keys.given, "linear_attn_config").get("full_attn_layers")
    if isinstance(full, list):
        return "full_attention" if layer + 1 in full else "linear_attention"
    if isinstance(keys.get("attn_type_list"), list):
        return "full_attention" if keys.get("attn_type_list")[layer] else "linear_attention"
    for names in ("attn_layer_indices", "full_attn_idxs"):
        if isinstance(keys.get(names), list):
            return "full_attention" if layer in keys.get(names) else "linear_attention"
    if keys.get("full_attention_interval"):
        return "linear_attention" if (layer + 1) % keys.count("full_attention_interval") else "full_attention"
    if keys.get("attn_layer_period"):
        offset = keys.amount("attn_layer_offset")
        return "full_attention" if layer % keys.count("attn_layer_period") == offset else "mamba"
    if keys.facts.get("blocks") == "parallel":
        return "full_attention"
    if keys.facts.get("blocks") == "mixer":
        return "mamba"
    raise KeyError("layer_types")


def window_of(keys: Keys) -> tuple[int | None, bool]:
    """Return the tokens of a window that is shorter than the context, None without one, and whether it is a chunk."""
    for name in ("sliding_window", "attention_chunk_size"):
        if keys.get(name) in (None, 0) or (name == "sliding_window" and keys.get("use_sliding_window") is False):
            continue
        window, longest = keys.count(name), keys.get("max_position_embeddings")
        is_shorter = not isinstance(longest, int) or window < longest
        return (window, name == "attention_chunk_size") if is_shorter else (None, False)
    return None, False


def _attention(keys: Keys, windowed: bool, shared: bool) -> Attention:
    """Return attention with grouped heads, whose sizes may differ between windowed layers and others."""
    window, chunked = window_of(keys) if windowed else (None, False)
    heads, own = keys.count(*HEADS), f"{'swa' if windowed else 'global'}_"
    heads = keys.count("swa_num_attention_heads", default=heads) if windowed else heads
    head_dim = head_dim_of(keys, heads)
    kv_heads = kv_heads_of(keys, heads)
    if windowed:
        kv_heads = keys.count("swa_num_key_value_heads", default=kv_heads)
    elif keys.get("attention_k_eq_v"):
        kv_heads = keys.count("num_global_key_value_heads", default=kv_heads)
    value = keys.get("v_head_dim") or None  # 0 in DeepSeek's configurations without latent attention
    return Attention(
        heads,
        kv_heads,
        keys.count(f"{own}head_dim", default=head_dim),
        None if value is None else keys.count("swa_v_head_dim" if windowed else "v_head_dim", "v_head_dim"),
        window,
        bool(keys.get("attn_output_gate", "attention_output_gate") or keys.facts.get("gated")),
        shared,
        chunked,
    )


def head_dim_of(keys: Keys, heads: int) -> int:
    """Return the numbers of a head."""
    return keys.count(*HEAD_DIM, default=keys.count(*HIDDEN) // heads)


def kv_heads_of(keys: Keys, heads: int) -> int:
    """Return the heads of keys and values: as many as those of queries where the file does not say."""
    if keys.get("multi_query") and not keys.get("new_decoder_architecture"):  # Falcon's and GPT-BigCode's key
        return 1
    return keys.count(*KV_HEADS, default=heads)


def _latent(keys: Keys, layer: int) -> LatentAttention:
    rank = keys.get("q_lora_rank")
    index = keys.amount("index_head_dim") if keys.get("index_topk") else 0
    kinds = keys.get("indexer_types")
    if isinstance(kinds, list) and layer < len(kinds) and kinds[layer] == "shared":
        index = 0  # it reads the choice of another layer's indexer
    head = keys.count(*HIDDEN) // keys.count(*HEADS)
    return LatentAttention(
        keys.count(*HEADS),
        None if rank is None else keys.count("q_lora_rank"),
        keys.count("kv_lora_rank"),
        keys.count("qk_nope_head_dim"),
        keys.count("qk_rope_head_dim"),
        keys.count("v_head_dim", default=head),
        indexed=index,
        index_heads=keys.count("index_n_heads") if index else 0,
        top=keys.count("index_topk") if keys.get("index_topk") else None,
        per_head=keys.facts.get("latent") == "per_head",
    )


def _recurrent(keys: Keys) -> Recurrent:
    kind = keys.facts.get("recurrent")
    makers = {
        "gated delta net": _delta_net,
        "mamba": _mamba,
        "mamba2": _mamba2,
        "short convolution": _short_convolution,
        "kimi delta attention": _kimi_delta,
        "lightning attention": _lightning,
    }
    if kind not in makers:
        raise NotUnderstood("a model with layers of another kind", "layer_types")
    return makers[kind](keys)


def _state_bytes(keys: Keys) -> int | None:
    """Return the bytes of a number of a recurrent state; None: those of the arithmetic."""
    dtype = keys.get("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    return None if dtype is None else _STATE_BYTES.get(str(dtype).removeprefix("torch."))


def _delta_net(keys: Keys) -> Recurrent:
    """Return a gated delta net: projections of queries, keys, values, gate, and two numbers of a head."""
    hidden, heads = keys.count(*HIDDEN), keys.count("linear_num_value_heads")
    key_dim, value_dim = keys.count("linear_key_head_dim"), keys.count("linear_value_head_dim")
    key, value = keys.count("linear_num_key_heads") * key_dim, heads * value_dim
    kernel, convolved = keys.count("linear_conv_kernel_dim"), 2 * key + value
    matrices = hidden * (2 * key + 2 * value + 2 * heads) + value * hidden + kernel * convolved
    state = heads * key_dim * value_dim
    return Recurrent("gated delta net", matrices, state, (kernel - 1) * convolved, _state_bytes(keys))


def _mamba2(keys: Keys) -> Recurrent:
    hidden = keys.count(*HIDDEN)
    heads = keys.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    wide = keys.get("mamba_d_ssm") or keys.count("mamba_expand", "expand") * hidden
    head = keys.get(*keys.facts.get("ssm_head", ("mamba_head_dim", "mamba_d_head", "mamba_headdim")))
    head = wide // heads if head in (None, "auto") else int(head)
    states = keys.count("ssm_state_size", "mamba_d_state", "state_size")
    groups = keys.count("n_groups", "mamba_n_groups", "mamba_ngroups", default=1)
    kernel, inner = keys.count("conv_kernel", "mamba_d_conv"), heads * head
    convolved = inner + 2 * groups * states
    matrices = hidden * (inner + convolved + heads) + inner * hidden + kernel * convolved
    return Recurrent("mamba2", matrices, inner * states, (kernel - 1) * convolved, _state_bytes(keys))


def _mamba(keys: Keys) -> Recurrent:
    hidden = keys.count(*HIDDEN)
    inner = keys.count("mamba_expand", "expand") * hidden
    if keys.facts.get("blocks") == "mixer" and keys.get(*MLP):  # vLLM takes it, and Falcon Mamba's `expand` is another
        inner = keys.count(*MLP)
    states, kernel = keys.count("mamba_d_state", "state_size"), keys.count("mamba_d_conv", "conv_kernel")
    rank = keys.get("mamba_dt_rank", "time_step_rank")
    rank = -(-hidden // 16) if rank in (None, "auto") else int(rank)
    small = inner * (rank + 2 * states) + rank * inner + inner * states + kernel * inner
    return Recurrent("mamba", 3 * inner * hidden + small, inner * states, (kernel - 1) * inner, _state_bytes(keys))


def _short_convolution(keys: Keys) -> Recurrent:
    """Return LFM2's convolution: a projection to three times the hidden size, and one back."""
    hidden, kernel = keys.count(*HIDDEN), keys.count("conv_L_cache")
    return Recurrent("short convolution", 4 * hidden * hidden + kernel * hidden, 0, (kernel - 1) * hidden)


def _kimi_delta(keys: Keys) -> Recurrent:
    """Return Kimi delta attention: two projections of low rank besides those of queries, keys and values."""
    own = {**keys.defaults, **mapping_at(keys.given, "linear_attn_config")}
    hidden, linear = keys.count(*HIDDEN), Keys(own)
    heads, head = linear.count("num_heads", "linear_num_heads"), linear.count("head_dim", "linear_head_dim")
    kernel = linear.count("short_conv_kernel_size", "linear_conv_kernel_dim")
    inner = heads * head
    matrices = 4 * hidden * inner + hidden * heads + 2 * head * (hidden + inner) + 3 * kernel * inner
    return Recurrent("kimi delta attention", matrices, heads * head * head, 3 * (kernel - 1) * inner, 4)


def _lightning(keys: Keys) -> Recurrent:
    """Return MiniMax's lightning attention: queries, keys, values, gate and output of all heads."""
    heads, hidden = keys.count(*HEADS), keys.count(*HIDDEN)
    head = head_dim_of(keys, heads)
    return Recurrent("lightning attention", 5 * hidden * heads * head, heads * head * head, 0)


def _mlp(keys: Keys, layer: int) -> Mlp | Experts | None:
    """Return the MLP of a layer, or its experts."""
    if keys.facts.get("blocks") == "mixer":
        return None
    matrices = int(keys.facts.get("mlp_matrices", 3))
    if _has_experts(keys, layer):
        return _experts(keys, matrices)
    given = keys.get("intermediate_size_mlp", "dense_intermediate_size")
    if given is None and keys.facts.get("dense_is_shared"):  # Granite's dense hybrids have the shared MLP only
        return Mlp(keys.count("shared_intermediate_size"), matrices)
    own = keys.get(*MLP)
    if isinstance(own, list):
        return Mlp(Keys({MLP[0]: own[layer]}).count(MLP[0]), matrices)
    size = keys.count("intermediate_size_mlp", "dense_intermediate_size", default=mlp_size(keys))
    shared = keys.amount("num_kv_shared_layers")
    wide = keys.get("use_double_wide_mlp") and layer >= keys.count(*LAYERS) - shared
    return Mlp(2 * size if wide else size, matrices)


def mlp_size(keys: Keys) -> int:
    """Return the intermediate size of a dense MLP."""
    if keys.get(*MLP) is None and keys.get("mlp_ratio"):
        return keys.count("mlp_ratio") * keys.count(*HIDDEN)
    size = keys.count(*MLP)
    if not keys.get("block_auto_adjust_ff_dim"):
        return size
    size = int(2 * size / 3)  # LFM2's own rule
    size = int(float(keys.get("block_ffn_dim_multiplier") or 1.0) * size)
    multiple = keys.count("block_multiple_of")
    return -(-size // multiple) * multiple


def _has_experts(keys: Keys, layer: int) -> bool:
    """Return whether a layer has experts; each class has keys of its own for it."""
    if keys.get("enable_moe_block") is False or keys.amount(*EXPERTS) < 2:
        return False
    kinds = keys.get("mlp_layer_types")
    if isinstance(kinds, list):
        return bool(kinds[layer] == "sparse")
    if isinstance(keys.get("moe_layers"), list):
        return layer in keys.get("moe_layers")
    if isinstance(keys.get("moe_layers_enum"), str):
        return str(layer) in keys.get("moe_layers_enum").split(",")
    if layer in (keys.get("mlp_only_layers") or ()):
        return False
    step = keys.get("moe_layer_freq")
    if isinstance(step, list):
        return bool(step[layer])
    last = keys.get("moe_layer_end_index")
    if layer < (keys.amount(*_FIRST_DENSE) or int(keys.facts.get("first_dense", 0))) or (
        isinstance(last, int) and 0 <= last < layer
    ):
        return False
    if keys.get("expert_layer_period"):
        return layer % keys.count("expert_layer_period") == keys.amount("expert_layer_offset")
    every = keys.count("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1)
    return (layer + 1) % every == 0 and layer % keys.count("moe_layer_freq", default=1) == 0


def _experts(keys: Keys, matrices: int) -> Experts:
    size = keys.count(*_EXPERT_MLP, default=None if keys.get(*MLP) is None else keys.count(*MLP))
    copies = keys.amount(*_SHARED_COUNT)
    shared = keys.amount("moe_shared_expert_intermediate_size") * max(copies, 1) or keys.amount(*_SHARED)
    if keys.facts.get("shared_is_mlp"):
        shared = keys.count(*MLP)
    return Experts(
        keys.amount(*EXPERTS),
        keys.count(*_CHOSEN),
        size,
        shared or copies * size,
        matrices,
        latent=keys.amount("moe_latent_size") or None,
    )


def _nemotron_h(keys: Keys) -> Iterator[Layer]:
    """Yield Nemotron-H's layers, each of which is either a mixer or an MLP."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = keys.get("hybrid_override_pattern")
    kinds = [letters.get(each, each) for each in pattern] if isinstance(pattern, str) else keys.get(*_MIXER_KINDS)
    if not isinstance(kinds, list):
        raise KeyError("hybrid_override_pattern")
    _checked(len(kinds), "hybrid_override_pattern")
    matrices = int(keys.facts.get("mlp_matrices", 3))
    for kind in kinds:
        if kind in _RECURRENT:
            yield _mamba2(keys), None
        elif kind in _FULL:
            yield _attention(keys, windowed=False, shared=False), None
        elif kind == "mlp":
            yield None, Mlp(keys.count(*MLP), matrices)
        elif kind == "moe":
            yield None, _experts(keys, matrices)
        else:
            raise NotUnderstood("a model with layers of another kind", f"hybrid_override_pattern {shown(kind)}")


def _longcat(keys: Keys, count: int) -> Iterator[Layer]:
    """Yield LongCat's layers: two of attention and a dense MLP, and experts beside them.

    Of the chosen experts some compute nothing (`zero_expert_num`): chosen evenly, n of all n + z remain.
    """
    experts, idle = keys.count(*EXPERTS), keys.amount("zero_expert_num")
    chosen = round(keys.count(*_CHOSEN) * experts / (experts + idle))
    for layer in range(count):
        for _ in range(2):
            yield _latent(keys, layer), Mlp(keys.count(*MLP))
        yield None, Experts(experts, chosen, keys.count(*_EXPERT_MLP))


def _block(keys: Keys, block: Mapping[str, Any]) -> Layer:
    """Return a layer of a model that architecture search made (`block_configs`)."""
    hidden, heads = keys.count(*HIDDEN), keys.count(*HEADS)
    attention, ffn = mapping_at(block, "attention"), mapping_at(block, "ffn")
    mixer: Mixer | None = None
    if attention.get("replace_with_linear"):
        mixer = Recurrent("linear", hidden * hidden, 0, 0)
    elif not attention.get("no_op"):
        own = Keys(attention)
        kv_heads = own.amount("num_key_value_heads") or heads // own.count("n_heads_in_group")
        window = own.count("window_length") if attention.get("window_length") else None
        mixer = Attention(heads, kv_heads, head_dim_of(keys, heads), window=window)
    if ffn.get("moe"):
        raise NotUnderstood("a model whose layers differ", "block_configs with moe")
    if ffn.get("no_op"):
        return mixer, None
    if ffn.get("replace_with_linear"):
        return mixer, Mlp(hidden, 1)
    if ffn.get("intermediate_size") is not None:
        return mixer, Mlp(Keys(ffn).count("intermediate_size"))
    size = int(2 * float(ffn["ffn_mult"]) * hidden / 3)
    return mixer, Mlp(-(-size // 256) * 256)
