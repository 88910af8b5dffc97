"""`--speculative-config`, as vLLM reads it: where drafts come from and how long they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KNOWN = {
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
_TREE_DEPTH = 24
_LOOKUP = 5


@dataclass(frozen=True)
class Speculation:
    """Drafts. `tokens` is the most that a sequence is offered in a step; the rest belongs to one method.

    `lookup_min` is the shortest piece of text that ngram looks up, `factor` how many tokens suffix decoding drafts for
    each that matched, `min_probability` the frequency below which it drafts no further, `draft_model` a hub name.
    """

    method: str
    tokens: int
    lookup_min: int = _LOOKUP
    factor: float = 1.0
    min_probability: float = 0.1
    draft_model: str | None = None


def find_speculation(
    said: Mapping[str, Any] | None, version: tuple[int, ...], packages: frozenset[str]
) -> Speculation | None:
    """Return what drafts; None without speculation.

    Raises:
        ValueError: with vLLM's words, for what it refuses (config/speculative.py).
    """
    if not said:
        return None
    unknown = sorted({*said} - _KNOWN)
    if unknown:
        raise ValueError(f"speculative_config.{unknown[0]}: Unexpected keyword argument")
    method = said.get("method") or ("draft_model" if said.get("model") else None)
    tokens = said.get("num_speculative_tokens")
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise ValueError("num_speculative_tokens: Input should be greater than 0")
    if method == "ngram":
        return _ngram(said, _needed(tokens))
    if method == "suffix":
        return _suffix(said, tokens, packages)
    if method == "draft_model":
        model = said.get("model")
        if not model:
            raise ValueError("draft_model speculation needs a `model`")
        return Speculation("draft_model", _needed(tokens), draft_model=str(model))
    raise ValueError(f"method: {method!r} is not simulated (ngram, suffix and draft_model are)")


def _needed(tokens: int | None) -> int:
    if tokens is None:
        raise ValueError(
            "num_speculative_tokens must be provided with speculative model unless the draft model config contains an "
            "n_predict parameter."
        )
    return tokens


def _ngram(said: Mapping[str, Any], tokens: int) -> Speculation:
    most, least = said.get("prompt_lookup_max"), said.get("prompt_lookup_min")
    most = most or least or _LOOKUP
    least = least or most
    if least > most:
        raise ValueError(f"prompt_lookup_min={least} must be <= prompt_lookup_max={most}")
    return Speculation("ngram", tokens, lookup_min=least)


def _suffix(said: Mapping[str, Any], tokens: int | None, packages: frozenset[str]) -> Speculation:
    if "arctic_inference" not in packages:
        raise ValueError(
            "Arctic Inference is required for suffix decoding. Install via `pip install arctic-inference==0.1.1`."
        )
    depth = said.get("suffix_decoding_max_tree_depth", _TREE_DEPTH)
    return Speculation(
        "suffix",
        tokens or depth,
        factor=float(said.get("suffix_decoding_max_spec_factor", 1.0)),
        min_probability=float(said.get("suffix_decoding_min_token_prob", 0.1)),
    )
