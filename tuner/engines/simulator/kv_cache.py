"""The KV cache of a model by vLLM's rules: tables of blocks, and what a request needs of them.

Layers that hold the same tokens in the same form share a table, which maps the tokens of a sequence to blocks
(`v1/core/kv_cache_utils.py`; vLLM says group). All tables take their blocks from one pool, so a block has one size for
all of them:

    bytes of a block = layers of the largest table × page,    page = tokens of a block × bytes of a token in a layer

A model with several kinds of layers has several tables of at most as many layers as its rarest kind has; where the most
frequent kind has less than 1.5 times as many (1.25 before vLLM 0.25), as that one has. Gemma 3 27B with 10 full and 52
windowed layers has one table of 10 and six of 8 or 9. Smaller pages are brought to the size of the largest: by more
tokens of a block if they divide it, else by unused bytes.

The page of a recurrent layer is the state of a sequence. vLLM raises the tokens of a block until the page of an
attention layer is as large (`platforms/interface.py`), and then fills up the state's page.

Of a sequence of n tokens, a table takes

    full and latent attention    ceil(n / block)
    a window of w tokens         ceil(min(w - 1 + tokens in flight, n) / block) + 1 at most
    chunks of w tokens           ceil(min(w + tokens in flight, n) / block) at most
    recurrent                    1, one for each draft token, and with prefix caching another one in the steps in which
                                 the state at the end of a block is kept for other sequences

Before vLLM 0.26, tokens in flight are the token budget of a step, and from then on that of each step that is planned
at once. Chunks are vLLM's chunked local attention (Llama 4).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import NamedTuple

from search_spaces import ModelShape
from search_spaces.catalogue.layers import Attention, LatentAttention, LayerGroup, Recurrent
from tuner.engines.simulator.block_pool import PageRule
from tuner.engines.simulator.precision import ConfigRefused

_ALL_TABLES = (0, 21)
"""The version from which vLLM counts all tables in what it logs and requires (its issue 43308)."""
_CACHED_STATES = (0, 27)
"""The version from which vLLM caches prefixes of recurrent models by default (its pull request 50991)."""
_KERNEL_BLOCK = 16
_LATENT_KERNEL_BLOCK = 64
_LATENT_KERNEL_BLOCK_FROM_0_32 = 128
"""Tokens of a block are a multiple of these in a model with recurrent layers, by its kind of attention."""
_STATE_CHUNK = 128
"""Tokens of a chunk in Mamba's kernels, to a multiple of which blocks are rounded if each of them keeps a state; those
of Nemotron, where other models have 256."""
_STATE_BYTES = 2
_CONVOLVED_TOKENS = 3
"""Tokens that a short convolution keeps of a sequence; each draft token adds one."""
_HEAD_SCALE_BYTES = 8
"""Bytes of the two scales of a token and head in a KV cache with scales for each."""
_SPARSE_FP8_BYTES = 656
"""Bytes of a token in a layer of sparse latent attention with an FP8 cache: 512 numbers, 4 scales, 64 16-bit ones."""


@dataclass(frozen=True)
class BlockTables:
    """Equal tables of blocks.

    Attributes:
        count: tables.
        block_size: tokens of a block; recurrent layers have those of the others.
        window: tokens that a token sees at most, itself included; None: all before it.
        chunked: whether the window is a chunk.
        states: blocks that a sequence holds whatever its length; None if they grow with it.
        spare: blocks that vLLM reserves beside these, for the steps in which a state is kept for others.
        grows: whether vLLM reserves a block for every `block_size` tokens, although the states need fewer.
    """

    count: int
    block_size: int
    window: int | None = None
    states: int | None = None
    spare: int = 0
    grows: bool = False
    chunked: bool = False

    def most_blocks(self, tokens: int, in_flight: int) -> int:
        """Return the blocks that a sequence of so many tokens takes in each table at most."""
        if self.states is not None:
            return (-(-tokens // self.block_size) - 1 if self.grows else self.spare) + self.states
        if self.window is None:
            return -(-tokens // self.block_size)
        if self.chunked:
            return -(-min(self.window + in_flight, tokens) // self.block_size)
        return -(-min(self.window - 1 + in_flight, tokens) // self.block_size) + 1


@dataclass(frozen=True)
class KvCache:
    """The KV cache of one GPU's part of a model, in blocks of one size.

    Attributes:
        tables: by kind of layer.
        block_bytes: bytes of a block.
        in_flight: tokens that steps hold beside those that are computed.
        version: vLLM's version.
    """

    tables: tuple[BlockTables, ...]
    block_bytes: int
    in_flight: int
    version: tuple[int, ...]

    @property
    def block_size(self) -> int:
        """Tokens after which every table that grows takes whole blocks: the unit in which prefixes are cached."""
        growing = [table.block_size for table in self.tables if table.states is None]
        return math.lcm(*growing) if growing else self.tables[0].block_size

    @property
    def rule(self) -> PageRule:
        """The pages that a sequence takes.

        Of windows of several sizes, the largest grows and slides, and the smaller ones take all their pages at once. A
        chunk is a window of as many tokens, which holds more than the chunk does in contexts of several chunks.
        """
        size = self.block_size
        growing = [table for table in self.tables if table.states is None]
        states = [table for table in self.tables if table.states is not None]
        pages: dict[int | None, int] = {}
        reach: dict[int | None, int] = {}
        for table in growing:
            pages[table.window] = pages.get(table.window, 0) + table.count * size // table.block_size
            reach[table.window] = -(-((table.window or 1) - 1) // size)
        largest = max((window for window in pages if window is not None), default=0)
        smaller = [window for window in pages if window is not None and window < largest]
        return PageRule(
            size,
            full=pages.get(None, 0),
            windowed=pages.get(largest, 0),
            window=reach.get(largest, 0),
            states=sum(table.count * (table.states or 0) for table in states)
            + sum(pages[window] * (reach[window] + 1) for window in smaller),
            reuses_states=any(table.spare for table in states),
        )

    def most_blocks(self, tokens: int) -> int:
        """Return the blocks of a sequence of so many tokens at most, over all tables."""
        return sum(table.count * table.most_blocks(tokens, self.in_flight) for table in self.tables)

    def needed_blocks(self, tokens: int) -> int:
        """Return the blocks that vLLM requires for a request of so many tokens to start; before 0.21, of one table."""
        if self.version < _ALL_TABLES:
            return self.tables[0].most_blocks(tokens, self.in_flight)
        return self.most_blocks(tokens)

    def longest(self, blocks: int, limit: int) -> int:
        """Return the tokens of the longest request, up to `limit`, that vLLM lets start; 0 if there is none.

        From 0.32 on, vLLM sets one block aside for this.
        """
        usable = blocks - (self.version >= (0, 32))
        return bisect_right(range(1, limit + 1), usable, key=self.needed_blocks)

    def tokens(self, blocks: int, max_model_len: int) -> int:
        """Return the tokens that vLLM logs as the size of the KV cache.

        These are blocks / blocks of the longest request × its tokens; before 0.21, blocks / tables × tokens of a block.
        """
        if self.version < _ALL_TABLES:
            sizes = [table.block_size for table in self.tables if table.states is None or table.grows]
            return blocks // sum(table.count for table in self.tables) * min(sizes, default=max_model_len)
        return blocks * max_model_len // self.most_blocks(max_model_len)


class _Kind(NamedTuple):
    """Layers that hold the same in the same form; `size` is the bytes of a token, or of a state."""

    size: float
    window: int | None = None
    is_state: bool = False
    is_latent: bool = False
    is_mamba: bool = False
    is_chunked: bool = False


class CacheFormat(NamedTuple):
    """What the form of the KV cache depends on, beside the model.

    Attributes:
        block_size: tokens of a block.
        element_bytes: bytes of a number of keys and values.
        head_scales: whether each token and head has scales.
        prefix_caching: whether the cache of shared prefixes is reused.
        keeps_windows: False to hold every token in windowed layers, too (`--disable-hybrid-kv-cache-manager`).
        keeps_every_state: whether Mamba's layers keep the state at the end of each block for other sequences.
        drafts: draft tokens of a sequence in a step.
        draft: layers that make drafts, which have a cache, too.
        in_flight: tokens that steps hold beside those that are computed.
    """

    block_size: int
    element_bytes: float
    in_flight: int
    head_scales: bool = False
    prefix_caching: bool = True
    keeps_windows: bool = True
    keeps_every_state: bool = False
    drafts: int = 0
    draft: tuple[LayerGroup, ...] = ()


def find_kv_cache(model: ModelShape, form: CacheFormat, version: tuple[int, ...]) -> KvCache:
    """Return the KV cache of a model, or of one GPU's part of it.

    Raises:
        ConfigRefused: with vLLM's message, if the layers cannot share blocks.
    """
    layers = _layers_by_kind(model, form)
    if not form.keeps_windows:
        layers = _without_windows(layers)
    block_size = _aligned_block_size(layers, form, version)
    if len({(kind.window, kind.is_state) for kind in layers}) == 1:
        size = sum(count * _page(kind, block_size) for kind, count in layers.items())
        table = _tables(next(iter(layers)), 1, block_size, form)
        return KvCache((table,), size, form.in_flight, version)
    page = _common_page(layers, block_size, version)
    most = _layers_of_a_table(list(layers.values()), version)
    tables = tuple(
        _tables(kind, -(-count // most), _fitted_block_size(kind, block_size, page), form)
        for kind, count in layers.items()
    )
    largest = max(-(-count // table.count) for count, table in zip(layers.values(), tables, strict=True))
    return KvCache(tables, largest * page, form.in_flight, version)


def _layers_by_kind(model: ModelShape, form: CacheFormat) -> dict[_Kind, int]:
    """Return the number of layers of each kind, full attention first; layers that read another's cache have none."""
    layers: dict[_Kind, int] = {}
    for group in (*model.groups, *form.draft):
        for kind in _kinds_of(group.mixer, form):
            layers[kind] = layers.get(kind, 0) + group.count
    return dict(sorted(layers.items(), key=lambda item: (item[0].is_state, item[0].window is not None)))


def _kinds_of(mixer: Attention | LatentAttention | Recurrent | None, form: CacheFormat) -> list[_Kind]:
    if isinstance(mixer, Recurrent):
        size = mixer.sequence_bytes + mixer.convolved * form.drafts / _CONVOLVED_TOKENS * _STATE_BYTES
        return [_Kind(size, is_state=True, is_mamba=mixer.kind.startswith("mamba"))]
    if mixer is None or not mixer.cached:
        return []
    size = mixer.cached * form.element_bytes
    if isinstance(mixer, Attention):
        size += mixer.kv_heads * _HEAD_SCALE_BYTES if form.head_scales else 0
        return [_Kind(size, mixer.window, is_chunked=mixer.chunked)]
    is_sparse_fp8 = mixer.top is not None and form.element_bytes == 1
    latent = _Kind(_SPARSE_FP8_BYTES if is_sparse_fp8 else size, is_latent=not mixer.per_head)
    return [latent, _Kind(mixer.index_bytes)] if mixer.indexed else [latent]


def _without_windows(layers: dict[_Kind, int]) -> dict[_Kind, int]:
    """Return the layers with windowed ones as full ones, if there are both."""
    if all(kind.window for kind in layers) or not any(kind.window for kind in layers):
        changed = layers
    else:
        changed = {}
        for kind, count in layers.items():
            full = kind._replace(window=None, is_chunked=False)
            changed[full] = changed.get(full, 0) + count
    if len({(kind.window, kind.is_state) for kind in changed}) > 1:
        raise ConfigRefused(
            "Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one unified type."
        )
    return changed


def _aligned_block_size(layers: dict[_Kind, int], form: CacheFormat, version: tuple[int, ...]) -> int:
    """Return the tokens of a block: as many as make an attention layer's page as large as a recurrent layer's."""
    states = [kind for kind in layers if kind.is_state]
    attention = next((kind for kind in layers if not kind.is_state), None)
    if not states or attention is None:
        return form.block_size
    step = max(_KERNEL_BLOCK, form.block_size)
    if attention.is_latent:
        step = max(step, _LATENT_KERNEL_BLOCK if version < (0, 32) else _LATENT_KERNEL_BLOCK_FROM_0_32)
    if form.keeps_every_state and any(kind.is_mamba for kind in states):
        step = math.lcm(step, _STATE_CHUNK)
    largest = max(kind.size for kind in states)
    return step * math.ceil(largest / (step * attention.size))


def _page(kind: _Kind, block_size: int) -> int:
    return math.ceil(kind.size if kind.is_state else kind.size * block_size)


def _common_page(layers: dict[_Kind, int], block_size: int, version: tuple[int, ...]) -> int:
    """Return the bytes of the largest page, to which the others are brought."""
    pages = {_page(kind, block_size) for kind in layers if not kind.is_state}
    page = max(pages)
    if version < (0, 25) and any(page % each for each in pages):
        raise ConfigRefused(
            "The page size of the layer is not divisible by the maximum page size. Cannot unify by adjusting "
            "block_size."
        )
    return page


def _fitted_block_size(kind: _Kind, block_size: int, page: int) -> int:
    own = _page(kind, block_size)
    return block_size if kind.is_state or page % own else block_size * (page // own)


def _layers_of_a_table(counts: list[int], version: tuple[int, ...]) -> int:
    fewest, most = min(counts), max(counts)
    return most if most < fewest * (1.5 if version >= (0, 25) else 1.25) else fewest


def _tables(kind: _Kind, count: int, block_size: int, form: CacheFormat) -> BlockTables:
    if not kind.is_state:
        return BlockTables(count, block_size, kind.window, chunked=kind.is_chunked)
    if form.keeps_every_state and kind.is_mamba:
        return BlockTables(count, block_size, states=1 + form.drafts, grows=True)
    return BlockTables(count, block_size, states=1 + form.drafts, spare=int(form.prefix_caching))


def caches_prefixes(given: bool | None, model: ModelShape, version: tuple[int, ...]) -> bool:
    """Return whether prefixes are cached, for `--enable-prefix-caching`.

    By default they are, but before vLLM 0.27 not of a model with recurrent layers, and never of one without attention.
    """
    if given is not None or not model.has_recurrent_layers:
        return given is not False
    has_attention = any(isinstance(group.mixer, Attention | LatentAttention) for group in model.groups)
    return version >= _CACHED_STATES and has_attention


def keeps_every_state(mode: str | None, prefix_caching: bool, version: tuple[int, ...]) -> bool:
    """Return whether Mamba's layers keep the state at the end of each block, for `--mamba-cache-mode`.

    Before vLLM 0.27 they do by default if prefixes are cached. `none` counts as no value then.

    Raises:
        ConfigRefused: for a mode that vLLM does not know.
    """
    modes = ("all", "align", "none") if version < (0, 32) else ("align", "none")
    if mode is not None and mode not in modes:
        choices = ", ".join(f"'{each}'" for each in modes)
        raise ConfigRefused(f"argument --mamba-cache-mode: invalid choice: '{mode}' (choose from {choices})")
    return prefix_caching and mode != "align" and (mode == "all" or version < _CACHED_STATES)


def with_state_format(model: ModelShape, dtype: str | None, version: tuple[int, ...]) -> ModelShape:
    """Return a model whose states have the numbers of `--mamba-ssm-cache-dtype`.

    Raises:
        ConfigRefused: for a format that vLLM does not know.
    """
    formats = {"auto": None, "bfloat16": 2, "float16": 2, "float32": 4}
    if version < (0, 25):
        del formats["bfloat16"]
    if dtype is not None and dtype not in formats:
        choices = ", ".join(f"'{each}'" for each in formats)
        raise ConfigRefused(f"argument --mamba-ssm-cache-dtype: invalid choice: '{dtype}' (choose from {choices})")
    given = None if dtype is None else formats[dtype]
    if given is None or model.decoder is None:
        return model
    groups = [
        replace(group, mixer=replace(group.mixer, state_bytes=given)) if isinstance(group.mixer, Recurrent) else group
        for group in model.decoder
    ]
    return replace(model, decoder=tuple(groups))
