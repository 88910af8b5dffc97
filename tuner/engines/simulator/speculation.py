"""Speculative decoding: where drafts come from, what a pass that makes one computes, and how often drafts are right.

Drafts of `ngram` and `suffix` are pieces of earlier text that the host looks up. Other methods compute a pass for each
draft token (vLLM's `v1/spec_decode/llm_base_proposer.py`): the first one over all tokens of the step, the others over
one token of each sequence. In a pass work, with hidden size h,

    mtp          one of the model's own layers that predict further tokens: attention and MLP or experts as in its last
                 layer of full attention, and a projection of 2 h to h
    eagle        the layers of the head's config.json and a projection of 2 h to h
    eagle3       the same with a projection of 3 h to h and queries, keys and values of 2 h
    draft_model  a whole model

and the head, which MTP and EAGLE share with the model. An EAGLE head whose config.json is not on this machine counts as
one layer of the model's size with an MLP.

A draft token after right ones is right with the probability α, whatever its place (Leviathan et al. 2023), so that a
draft of k tokens gives (1 - α^(k + 1)) / (1 - α) tokens on average. `parameters.yaml` has α by method: published means
that depend on the text, the draft and the sampling. With `--load-format dummy` drafts and answers have nothing in
common, and none is right. `rejection_sample_method: synthetic` of vLLM 0.32 sets the rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from search_spaces import ModelShape
from search_spaces.catalogue.layers import Attention, LatentAttention, LayerGroup, Mlp
from tuner.engines.simulator.flags import key_integer, vllm_default
from tuner.engines.simulator.precision import NotSimulated, Site

_KEYS = {
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
}
_DEFAULT_LOOKUP = 5
_SYNTHETIC = (0, 32)
"""The version of vLLM that was read for synthetic acceptance."""
_HEADS = ("eagle3", "eagle")
_LOOKED_UP = ("ngram", "suffix")


@dataclass(frozen=True)
class Speculation:
    """How drafts are made.

    Attributes:
        method: `ngram`, `suffix`, `mtp`, `eagle`, `eagle3` or `draft_model`.
        tokens: draft tokens of a sequence in a step at most.
        lookup_min: ngram only: tokens of the shortest piece of text that is looked up.
        factor: suffix decoding only: draft tokens for each token that matched.
        min_probability: suffix decoding only: tokens that are rarer are not drafted.
        draft: what a pass computes; None for drafts that are looked up.
        copies: equal drafts, of which passes take turns: the model's MTP layers.
        rates: probability that each draft token is right if those before it are; None for that of the method.
    """

    method: str
    tokens: int
    lookup_min: int = _DEFAULT_LOOKUP
    factor: float = 1.0
    min_probability: float = 0.1
    draft: ModelShape | None = None
    copies: int = 1
    rates: tuple[float, ...] | None = None

    @property
    def follows_states(self) -> bool:
        """Whether drafts are computed from the model's own hidden states (vLLM's `use_eagle`)."""
        return self.method in ("eagle", "eagle3", "mtp")

    @property
    def is_looked_up(self) -> bool:
        """Whether the host looks drafts up in earlier text."""
        return self.method in _LOOKED_UP

    @property
    def has_own_weights(self) -> bool:
        """Whether the draft's checkpoint and its number format are not the model's."""
        return self.method != "mtp"


def find_speculation(
    given: Mapping[str, Any] | None,
    model: ModelShape,
    site: Site,
    shape_named: Callable[[str], ModelShape],
    random_weights: bool = False,
) -> Speculation | None:
    """Return the speculation of a configuration; None without any.

    Args:
        given: the value of `--speculative-config`.
        model: the model that checks the drafts.
        site: where the server runs; suffix decoding needs the package `arctic_inference`.
        shape_named: returns the shape of a model by its folder or name, or raises `NotSimulated`.
        random_weights: whether all weights are random (`--load-format dummy`).

    Raises:
        ValueError: with vLLM's message, for a value that vLLM refuses.
    """
    if not given:
        return None
    unknown = sorted({*given} - _KEYS)
    if unknown:
        raise NotSimulated(f"--speculative-config: {unknown[0]} is not simulated; measure that with the engine vllm")
    method, tokens = _method(given), given.get("num_speculative_tokens")
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise ValueError("num_speculative_tokens: Input should be greater than 0")
    if method == "ngram":
        return _ngram(given, _required(tokens))
    if method == "suffix":
        if "arctic_inference" not in site.packages:
            raise ValueError(
                "Arctic Inference is required for suffix decoding. Install via `pip install arctic-inference==0.1.1`."
            )
        return _suffix(given, tokens, site)
    made = _with_passes(method, given, tokens, model, shape_named)
    rates = _synthetic_rates(given, made.tokens, site.version)
    return replace(made, rates=(0.0,) * made.tokens if rates is None and random_weights else rates)


def _method(given: Mapping[str, Any]) -> str | None:
    """Return the method; without one, that which vLLM takes from the name of the draft (`config/speculative.py`)."""
    method, name = given.get("method"), str(given.get("model") or "").lower()
    if method is None and name:
        return next((head for head in _HEADS if head in name.replace("eagle-3", "eagle3")), "draft_model")
    return "mtp" if isinstance(method, str) and method.endswith("_mtp") else method


def _required(tokens: int | None) -> int:
    if tokens is None:
        raise ValueError(
            "num_speculative_tokens must be provided with speculative model unless the draft model config contains an "
            "n_predict parameter."
        )
    return tokens


def _ngram(given: Mapping[str, Any], tokens: int) -> Speculation:
    longest, shortest = (key_integer(key, given.get(key)) for key in ("prompt_lookup_max", "prompt_lookup_min"))
    longest = longest or shortest or _DEFAULT_LOOKUP
    shortest = shortest or longest
    if shortest > longest:
        raise ValueError(f"prompt_lookup_min={shortest} must be <= prompt_lookup_max={longest}")
    return Speculation("ngram", tokens, lookup_min=shortest)


def _suffix(given: Mapping[str, Any], tokens: int | None, site: Site) -> Speculation:
    def value(key: str, parameter: str) -> Any:
        return given.get(key, vllm_default(parameter, site.card, site.version))

    return Speculation(
        "suffix",
        tokens or value("suffix_decoding_max_tree_depth", "suffix_depth"),
        factor=float(value("suffix_decoding_max_spec_factor", "suffix_factor")),
        min_probability=float(value("suffix_decoding_min_token_prob", "suffix_probability")),
    )


def _with_passes(
    method: str | None,
    given: Mapping[str, Any],
    tokens: int | None,
    model: ModelShape,
    shape_named: Callable[[str], ModelShape],
) -> Speculation:
    """Return the speculation of a method that computes its drafts."""
    name = given.get("model")
    if method == "mtp" and name is None:
        return _mtp(tokens, model)
    if method in _HEADS and name is not None:
        return Speculation(method, _required(tokens), draft=_head(method, str(name), model, shape_named))
    if method == "draft_model" and name is not None:
        return Speculation(method, _required(tokens), draft=_whole_model(str(name), model, shape_named))
    beside = "" if name is None else " with a model of its own"
    raise NotSimulated(
        f"--speculative-config: method {method!r}{beside} is not simulated (ngram, suffix, mtp without a model, and "
        "eagle, eagle3 and draft_model with one are)"
    )


def _mtp(tokens: int | None, model: ModelShape) -> Speculation:
    copies = model.draft_layers
    if not copies:
        raise NotSimulated("--speculative-config: the model's config.json has no layers that predict further tokens")
    tokens = tokens or copies
    if tokens > copies and tokens % copies:
        raise ValueError(f"num_speculative_tokens:{tokens} must be divisible by n_predict={copies}")
    attention = [group for group in model.groups if isinstance(group.mixer, Attention | LatentAttention)]
    if not attention:
        raise NotSimulated("--speculative-config: MTP layers of a model without attention are not simulated")
    full = [group for group in attention if not (isinstance(group.mixer, Attention) and group.mixer.window)]
    last = (full or attention)[-1]
    # Nemotron-H's layers have a mixer or an MLP, and its MTP layer both
    mlp = last.mlp or next((group.mlp for group in reversed(model.groups) if group.mlp is not None), None)
    groups = (LayerGroup(1, last.mixer, mlp), LayerGroup(1, None, Mlp(2 * model.hidden, matrices=1)))
    return Speculation("mtp", tokens, draft=replace(model, layers=1, decoder=groups, beside=0), copies=copies)


def _head(method: str, name: str, model: ModelShape, shape_named: Callable[[str], ModelShape]) -> ModelShape:
    """Return the shape of an EAGLE head."""
    layer = LayerGroup(1, Attention(model.heads, model.kv_heads, model.head_dim), Mlp(model.intermediate))
    assumed = replace(model, layers=1, decoder=(layer,), beside=0, quantization=None, weight_bits=None, bits=None)
    try:
        own = shape_named(name)
    except NotSimulated:
        own = assumed
    own = assumed if own.unread is not None else own
    wide = 2 * own.hidden
    if method == "eagle3":
        wide = 3 * own.hidden + own.heads * own.head_dim + 2 * own.kv_heads * own.head_dim
    return replace(own, decoder=(*own.groups, LayerGroup(1, None, Mlp(wide, matrices=1))), tied=True)


def _whole_model(name: str, model: ModelShape, shape_named: Callable[[str], ModelShape]) -> ModelShape:
    draft = shape_named(name)
    if draft.unread is not None:
        raise NotSimulated(f"the draft model: {draft.unread}; measure it with the engine vllm")
    if draft.vocab != model.vocab:
        raise ValueError(
            f"Target and draft model should have the same vocabulary size. Target model vocab_size={model.vocab}. "
            f"Draft model vocab_size={draft.vocab}. Using models with different tokenizers can cause out-of-bounds "
            "errors during speculative decoding."
        )
    return draft


def _synthetic_rates(given: Mapping[str, Any], tokens: int, version: tuple[int, ...]) -> tuple[float, ...] | None:
    """Return the rates that vLLM is told, each given that those before it are accepted; None without any.

    vLLM's own list has the share of all drafts whose tokens up to a place are accepted.
    """
    rates, length = given.get("synthetic_acceptance_rates"), given.get("synthetic_acceptance_length")
    method = given.get("rejection_sample_method") or "standard"
    if method == "standard" and rates is None and length is None:
        return None
    if method != "synthetic" or version < _SYNTHETIC:
        raise NotSimulated(f"--speculative-config: rejection_sample_method {method} is not simulated here")
    if (rates is None) == (length is None):
        raise ValueError(
            "rejection_sample_method='synthetic' requires exactly one of synthetic_acceptance_rates or "
            "synthetic_acceptance_length."
        )
    if length is not None:
        if not isinstance(length, int | float) or not 1 <= length <= tokens + 1:
            raise ValueError(f"synthetic_acceptance_length must be in [1, {tokens + 1}], got {length}.")
        whole = int(length - 1)
        rates = [*[1.0] * whole, length - 1 - whole, *[0.0] * tokens][:tokens]
    if not isinstance(rates, list) or len(rates) != tokens:
        raise ValueError(f"synthetic_acceptance_rates must have length {tokens}, got {rates}.")
    if not all(isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates):
        raise ValueError(f"synthetic_acceptance_rates entries must be in [0, 1], got {rates}.")
    if rates != sorted(rates, reverse=True):
        raise ValueError(f"synthetic_acceptance_rates must be non-increasing, got {rates}.")
    before = (1.0, *rates)
    return tuple(rate / last if last else 0.0 for rate, last in zip(rates, before, strict=False))
