"""Reads `--speculative-config` as vLLM does (`config/speculative.py`): the draft method and the length of drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces import HardwareProfile
from tuner.engines.simulator.config.precision import NotSimulated
from tuner.engines.simulator.config.vllm_defaults import vllm_default

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
}
_DEFAULT_LOOKUP = 5


@dataclass(frozen=True)
class Speculation:
    """How drafts are made.

    Attributes:
        method: `ngram`, `suffix` or `draft_model`.
        tokens: draft tokens of a sequence in a step at most.
        lookup_min: ngram only: tokens of the shortest piece of text that is looked up.
        factor: suffix decoding only: draft tokens for each token that matched.
        min_probability: suffix decoding only: tokens that are rarer are not drafted.
        draft_model: the name of the draft model.
    """

    method: str
    tokens: int
    lookup_min: int = _DEFAULT_LOOKUP
    factor: float = 1.0
    min_probability: float = 0.1
    draft_model: str | None = None


def find_speculation(
    given: Mapping[str, Any] | None, card: HardwareProfile, version: tuple[int, ...], packages: frozenset[str]
) -> Speculation | None:
    """Return the speculation of a configuration; None without any.

    Args:
        given: the value of `--speculative-config`.
        card: the GPU.
        version: vLLM's version.
        packages: the packages beside vLLM; suffix decoding needs `arctic_inference`.

    Raises:
        ValueError: with vLLM's message, for a value that vLLM refuses.
    """
    if not given:
        return None
    unknown = sorted({*given} - _KEYS)
    if unknown:
        raise NotSimulated(f"--speculative-config: {unknown[0]} is not simulated; measure that with the engine vllm")
    method = given.get("method") or ("draft_model" if given.get("model") else None)
    tokens = given.get("num_speculative_tokens")
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise ValueError("num_speculative_tokens: Input should be greater than 0")
    if method == "ngram":
        return _ngram(given, _required(tokens))
    if method == "suffix":
        if "arctic_inference" not in packages:
            raise ValueError(
                "Arctic Inference is required for suffix decoding. Install via `pip install arctic-inference==0.1.1`."
            )
        return _suffix(given, tokens, card, version)
    if method == "draft_model":
        model = given.get("model")
        if not model:
            raise ValueError("draft_model speculation needs a `model`")
        return Speculation("draft_model", _required(tokens), draft_model=str(model))
    raise NotSimulated(f"--speculative-config: method {method!r} is not simulated (ngram, suffix and draft_model are)")


def _required(tokens: int | None) -> int:
    if tokens is None:
        raise ValueError(
            "num_speculative_tokens must be provided with speculative model unless the draft model config contains an "
            "n_predict parameter."
        )
    return tokens


def _ngram(given: Mapping[str, Any], tokens: int) -> Speculation:
    longest, shortest = given.get("prompt_lookup_max"), given.get("prompt_lookup_min")
    longest = longest or shortest or _DEFAULT_LOOKUP
    shortest = shortest or longest
    if shortest > longest:
        raise ValueError(f"prompt_lookup_min={shortest} must be <= prompt_lookup_max={longest}")
    return Speculation("ngram", tokens, lookup_min=shortest)


def _suffix(
    given: Mapping[str, Any], tokens: int | None, card: HardwareProfile, version: tuple[int, ...]
) -> Speculation:
    def value(key: str, parameter: str) -> Any:
        return given.get(key, vllm_default(parameter, card, version))

    return Speculation(
        "suffix",
        tokens or value("suffix_decoding_max_tree_depth", "suffix_depth"),
        factor=float(value("suffix_decoding_max_spec_factor", "suffix_factor")),
        min_probability=float(value("suffix_decoding_min_token_prob", "suffix_probability")),
    )
