"""vLLM's own defaults, read from the `engine_default` entries of the shipped search space `vllm`.

The search space is the only place where these defaults are written down.
"""

from __future__ import annotations

from functools import cache

from search_spaces import Context, HardwareProfile, load_space


@cache
def vllm_default(parameter: str, card: HardwareProfile, version: tuple[int, ...]) -> float:
    """Return vLLM's default for a numeric parameter of the space `vllm`, on a card and in a version of vLLM.

    Raises:
        LookupError: if the space has no default of that parameter for the card and the version.
    """
    context = Context(card, engine_version=".".join(map(str, version)))
    value = load_space("vllm").engine_default(parameter, context)
    if not isinstance(value, int | float):
        raise LookupError(f"the space vllm has no default of {parameter} for {card.name} and vLLM {version}")
    return value
