"""The arithmetic and the memory traffic that the tokens of a model need, whatever the card and the schedule.

    FLOP  = 2 linear tokens + 2 head sampled + 4 heads head_dim layers pairs
    bytes = (linear and head bytes) steps + 2 layers kv_heads head_dim element_bytes context

`linear` and `head` are parameters. A pair is a token that attention compares with one before it or itself; `context`
counts the tokens of KV cache that decodes read, each of them a pair, too. A multiplication with an addition is 2 FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces import ModelShape
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.memory.weights import Weights


@dataclass(frozen=True)
class TokenWork:
    """The factors of both sums.

    Attributes:
        token_flops: FLOP of the layers' matrices for a token.
        head_flops: FLOP of the head for a sampled token.
        pair_flops: FLOP of attention for a pair of tokens.
        weight_bytes: bytes of the matrices, read once a step.
        context_bytes: bytes of the KV cache of a token.
    """

    token_flops: float
    head_flops: float
    pair_flops: float
    weight_bytes: float
    context_bytes: float

    @classmethod
    def of(cls, config: ServeConfig, weights: Weights, part: ModelShape | None = None) -> TokenWork:
        """Return the factors of a configured server, or of one GPU's part of its model, with the part's weights."""
        model = part or config.model
        return cls(
            token_flops=2.0 * weights.linear,
            head_flops=2.0 * weights.head,
            pair_flops=4.0 * model.heads * model.head_dim * model.layers,
            weight_bytes=weights.linear_bytes + weights.head_bytes,
            context_bytes=2 * model.layers * model.kv_heads * model.head_dim * config.kv_element_bytes,
        )

    def flops(self, tokens: float, sampled: float, pairs: float) -> float:
        """Return the FLOP of so many tokens, sampled tokens and pairs."""
        return self.token_flops * tokens + self.head_flops * sampled + self.pair_flops * pairs

    def bytes(self, steps: float, context: float) -> float:
        """Return the bytes of so many steps whose decodes read `context` tokens of KV cache."""
        return self.weight_bytes * steps + self.context_bytes * context
