"""The layers of a decoder by kind: how many weights each has, and what it keeps of a token and of a sequence.

A layer has a mixer, which lets a token see those before it, and an MLP or experts. With hidden size h, the weights of
the matrices of one layer are, biases and norms left out:

    attention         h (n d (1 + gated) + k (d + v)) + n v h
                      n query heads; k key-value heads of d and v numbers
    latent (MLA)      h q + q n (a + r) + h (c + r) + c n (a + v) + n v h
                      q, c: ranks of queries and of the cache (without q, queries have h n (a + r)); a, r: numbers of a
                      head without and with rotation; an indexer adds q H d + h (d + H): H heads of d numbers
    gated delta net   h (2 K + 2 V + 2 m) + V h + conv (2 K + V)
                      K, V: numbers of all key and value heads; m: value heads; conv: tokens of the short convolution
    Mamba-2           h (2 I + 2 g s + m) + I h + conv (I + 2 g s)
                      I = m d: m heads of d numbers; g groups of s states
    Mamba-1           2 h I + I (t + 2 s) + t I + I h + I s + conv I
                      t: rank of the time step
    MLP               matrices h f
                      3 matrices if it is gated, else 2; f: intermediate size
    experts           E matrices l f + h E + matrices h F
                      E experts and their router; F: intermediate size of the MLP that every token passes; l: h, or the
                      size of a latent state, whose two projections add 2 h l

Sources: Vaswani et al. 2017; Shazeer 2019 and 2020 (grouped heads, gated MLPs); DeepSeek-V2 2024 (MLA); Yang, Kautz and
Hatamizadeh 2025 (gated delta networks); Gu and Dao 2023 and Dao and Gu 2024 (Mamba); and vLLM's models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_SCALE_BYTES = 4
_FULL_BYTES = 2
"""Bytes of a number in 16 bits."""


@dataclass(frozen=True)
class Attention:
    """Attention with grouped heads.

    Attributes:
        heads, kv_heads: of queries, and of keys and values.
        head_dim, value_dim: numbers of a key and of a value in a head; `value_dim` None: as many.
        window: tokens that a token sees at most, itself included; None: all before it.
        chunked: whether the window is a chunk that starts anew after so many tokens, in place of one that slides.
        gated: whether the output has a gate, a projection as large as the queries'.
        shared: whether it reads another layer's keys and values and has none of its own.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    window: int | None = None
    gated: bool = False
    shared: bool = False
    chunked: bool = False

    @property
    def cached(self) -> int:
        """Numbers of a token in the KV cache of a layer."""
        return 0 if self.shared else self.kv_heads * (self.head_dim + self.value_numbers)

    @property
    def value_numbers(self) -> int:
        """Numbers of a value in a head."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def pair_flops(self) -> float:
        """FLOP of comparing one token with another: a product for the score and one for the value."""
        return 2.0 * self.heads * (self.head_dim + self.value_numbers)

    def weights(self, hidden: int) -> int:
        """Return the weights of its matrices for a hidden size."""
        queries = self.heads * self.head_dim * (2 if self.gated else 1)
        return hidden * (queries + self.cached) + self.heads * self.value_numbers * hidden

    def of_tensor(self, gpus: int) -> Attention:
        """Return one GPU's part under tensor parallelism; key-value heads are copied where there are too few."""
        return replace(self, heads=self.heads // gpus, kv_heads=max(1, self.kv_heads // gpus))


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA): the cache holds one vector of a token, from which keys and values are made.

    Attributes:
        heads: of queries.
        query_rank: numbers of the compressed query; None: queries are not compressed.
        rank: numbers of the latent vector.
        plain_dim, rotated_dim, value_dim: numbers of a head without and with rotation, and of its value.
        indexed: numbers of a head of an indexer (sparse attention); 0 without one. Its cache has as many of a token, of
            8 bits, and a scale of 4 bytes.
        index_heads: of the indexer.
        top: tokens that sparse attention reads at most; None: all.
        per_head: whether the cache holds keys and values of each head, as vLLM's class without MLA's kernels does.
    """

    heads: int
    query_rank: int | None
    rank: int
    plain_dim: int
    rotated_dim: int
    value_dim: int
    indexed: int = 0
    index_heads: int = 0
    top: int | None = None
    per_head: bool = False

    @property
    def cached(self) -> int:
        """Numbers of a token in the KV cache of a layer: the latent vector and the rotated key, which heads share."""
        if self.per_head:
            return 2 * self.heads * (self.plain_dim + self.rotated_dim)
        return self.rank + self.rotated_dim

    @property
    def index_bytes(self) -> int:
        """Bytes of a token in the cache of a layer's indexer."""
        return self.indexed + _SCALE_BYTES if self.indexed else 0

    @property
    def pair_flops(self) -> float:
        """FLOP of comparing one token with another in a decode, in the latent space: 2 n (2 c + r)."""
        return 2.0 * self.heads * (2 * self.rank + self.rotated_dim)

    @property
    def prefill_pair_flops(self) -> float:
        """FLOP of comparing one token with another in a prefill, with keys and values of each head."""
        return 2.0 * self.heads * (self.plain_dim + self.rotated_dim + self.value_dim)

    def weights(self, hidden: int) -> int:
        """Return the weights of its matrices for a hidden size."""
        head = self.plain_dim + self.rotated_dim
        given = self.query_rank
        queries = hidden * self.heads * head if given is None else given * (hidden + self.heads * head)
        latent = hidden * (self.rank + self.rotated_dim) + self.absorbed
        index = (given or hidden) * self.index_heads * self.indexed + hidden * (self.indexed + self.index_heads)
        return queries + latent + self.heads * self.value_dim * hidden + (index if self.indexed else 0)

    @property
    def absorbed(self) -> int:
        """Weights of the matrix from the latent vector to keys and values; vLLM keeps a 16-bit copy for decodes."""
        return self.rank * self.heads * (self.plain_dim + self.value_dim)

    def of_tensor(self, gpus: int) -> LatentAttention:
        """Return one GPU's part under tensor parallelism, which does not divide the cache."""
        return replace(self, heads=self.heads // gpus)


@dataclass(frozen=True)
class Recurrent:
    """A layer whose memory of a sequence has a fixed size: linear attention or a state-space model.

    Attributes:
        kind: `gated delta net`, `mamba`, `mamba2`, or the name of another one.
        matrices: weights of its matrices.
        state: numbers of the state of a sequence.
        convolved: numbers that the short convolution keeps of a sequence.
        state_bytes: bytes of a number of the state; None: those of the arithmetic.
    """

    kind: str
    matrices: int
    state: int
    convolved: int
    state_bytes: int | None = None

    cached = 0

    @property
    def sequence_bytes(self) -> int:
        """Bytes that a layer keeps of a sequence; numbers have 16 bits where `state_bytes` does not say otherwise."""
        return self.state * (self.state_bytes or _FULL_BYTES) + self.convolved * _FULL_BYTES

    @property
    def token_flops(self) -> float:
        """FLOP of a token beside its matrices: the state decays, takes the token in and is read."""
        return 6.0 * self.state

    def weights(self, hidden: int) -> int:
        """Return the weights of its matrices, which count the hidden size already."""
        return self.matrices

    def of_tensor(self, gpus: int) -> Recurrent:
        """Return one GPU's part under tensor parallelism."""
        return replace(
            self,
            matrices=-(-self.matrices // gpus),
            state=-(-self.state // gpus),
            convolved=-(-self.convolved // gpus),
        )


@dataclass(frozen=True)
class Mlp:
    """A dense MLP of `matrices` matrices between the hidden size and `intermediate`: 3 if it is gated."""

    intermediate: int
    matrices: int = 3

    def weights(self, hidden: int) -> int:
        """Return the weights of its matrices for a hidden size."""
        return self.matrices * hidden * self.intermediate

    def of_tensor(self, gpus: int) -> Mlp:
        """Return one GPU's part under tensor parallelism."""
        return replace(self, intermediate=-(-self.intermediate // gpus))


@dataclass(frozen=True)
class Experts:
    """MLPs of which a router chooses `chosen` of `count` for each token.

    Attributes:
        chosen: of one GPU's part of the experts, the mean.
        intermediate: of each of them.
        shared: intermediate size of the MLP beside them that every token passes; 0 without.
        matrices: 3 if they are gated.
        latent: size of the state that the experts see, if it is projected; None: the hidden size.
        elsewhere: experts of other GPUs that a token chooses, the mean, of one GPU's part.
    """

    count: int
    chosen: float
    intermediate: int
    shared: int = 0
    matrices: int = 3
    latent: int | None = None
    elsewhere: float = 0.0

    def of_one(self, hidden: int) -> int:
        """Return the weights of the matrices of one expert."""
        return self.matrices * (self.latent or hidden) * self.intermediate

    def common(self, hidden: int) -> int:
        """Return the weights that every token passes: the router, the shared MLP and the projections to `latent`."""
        return self.router(hidden) + self.matrices * hidden * self.shared + 2 * hidden * (self.latent or 0)

    def router(self, hidden: int) -> int:
        """Return the weights of the router, which quantization leaves at 16 bits."""
        return hidden * self.count

    def weights(self, hidden: int) -> int:
        """Return the weights of all its matrices for a hidden size."""
        return self.count * self.of_one(hidden) + self.common(hidden)

    def touched(self, tokens: float) -> float:
        """Return the expected number of different experts that `tokens` tokens choose, each evenly and by itself.

        E (1 - (1 - chosen / E)^tokens)
        """
        return self.count * float(1.0 - (1.0 - self.chosen / self.count) ** tokens)

    def of_tensor(self, gpus: int) -> Experts:
        """Return one GPU's part under tensor parallelism, which divides each expert."""
        return replace(self, intermediate=-(-self.intermediate // gpus), shared=-(-self.shared // gpus))

    def of_experts(self, gpus: int) -> Experts:
        """Return one GPU's part under expert parallelism, which divides their number; experts beside them stay."""
        own = self.chosen / gpus
        return replace(self, count=-(-self.count // gpus), chosen=own, elsewhere=self.chosen - own)


@dataclass(frozen=True)
class LayerGroup:
    """Equal layers of a decoder.

    Attributes:
        count: of layers.
        mixer: None for a layer without one.
        mlp: None for a layer without one.
    """

    count: int
    mixer: Attention | LatentAttention | Recurrent | None
    mlp: Mlp | Experts | None

    def weights(self, hidden: int) -> int:
        """Return the weights of the matrices of all its layers."""
        parts = (self.mixer, self.mlp)
        return self.count * sum(part.weights(hidden) for part in parts if part is not None)

    def times(self, copies: int) -> LayerGroup:
        """Return so many times as many of these layers."""
        return LayerGroup(self.count * copies, self.mixer, self.mlp)

    def of_tensor(self, gpus: int) -> LayerGroup:
        """Return one GPU's part under tensor parallelism."""
        mixer = None if self.mixer is None else self.mixer.of_tensor(gpus)
        return LayerGroup(self.count, mixer, None if self.mlp is None else self.mlp.of_tensor(gpus))
