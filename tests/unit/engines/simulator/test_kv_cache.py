"""The KV cache of each kind of model: blocks, tokens and needed bytes as vLLM's own functions return them.

The expected numbers are those of `get_kv_cache_configs`, `get_kv_cache_capacity` and
`_max_memory_usage_bytes_from_groups` of vLLM 0.15.1, 0.25.1 and 0.32.0, run on a CPU with the specs of each layer.
"""

from dataclasses import replace
from typing import Any

import pytest

from search_spaces import known_models
from search_spaces.catalogue.layers import Attention, LatentAttention, LayerGroup, Recurrent
from tests.unit.engines.simulator.helpers import config_of, shape
from tuner.engines.simulator.block_pool import PageRule
from tuner.engines.simulator.kv_cache import (
    CacheFormat,
    KvCache,
    caches_prefixes,
    find_kv_cache,
    keeps_every_state,
    with_state_format,
)
from tuner.engines.simulator.precision import ConfigRefused

V15, V25, V32 = (0, 15, 1), (0, 25, 1), (0, 32, 0)
GIB = 2**30


def gated_delta_net(state_bytes: int | None = None, gpus: int = 1) -> Recurrent:
    """Return a layer of Qwen3-Next: 32 heads with states of 128 x 128, and 3 tokens of 8192 channels."""
    return Recurrent("gated delta net", 1, 32 * 128 * 128, 3 * 8192, state_bytes).of_tensor(gpus)


def mamba2(gpus: int = 1) -> Recurrent:
    """Return a layer of Nemotron-H 8B: 128 heads with states of 64 x 128 in 32 bits, and 3 tokens of 10240 channels."""
    return Recurrent("mamba2", 1, 128 * 64 * 128, 3 * 10240, 4).of_tensor(gpus)


LATENT = LatentAttention(128, 1536, 512, 128, 64, 128)
SHAPES = {
    "dense": shape((36, Attention(32, 8, 128))),
    "gemma3-27b": shape((10, Attention(32, 16, 128)), (52, Attention(32, 16, 128, window=1024))),
    "gemma3-27b of 2": shape((10, Attention(16, 8, 128)), (52, Attention(16, 8, 128, window=1024))),
    "gpt-oss-20b": shape((12, Attention(64, 8, 64, window=128)), (12, Attention(64, 8, 64))),
    "12 full, 17 windows": shape((12, Attention(64, 8, 64)), (17, Attention(64, 8, 64, window=128))),
    "deepseek-v3": shape((3, LATENT), (58, LATENT)),
    "deepseek-v3.2": shape((61, replace(LATENT, indexed=128, top=2048))),
    "qwen3-next": shape((12, Attention(16, 2, 256)), (36, gated_delta_net())),
    "qwen3-next of 2": shape((12, Attention(8, 1, 256)), (36, gated_delta_net(gpus=2))),
    "32-bit states": shape((12, Attention(16, 2, 256)), (36, gated_delta_net(4))),
    "nemotron-h-8b": shape((4, Attention(32, 8, 128)), (24, mamba2())),
    "nemotron-h-8b of 2": shape((4, Attention(16, 4, 128)), (24, mamba2(2))),
    "larger pages": shape((10, Attention(32, 4, 512)), (50, Attention(32, 16, 256, window=1024))),
    "padded pages": shape((10, Attention(24, 3, 128)), (50, Attention(32, 4, 128, window=1024))),
    "llama-4": shape((12, Attention(40, 8, 128)), (36, Attention(40, 8, 128, window=8192, chunked=True))),
    "windows of two sizes": shape(
        (12, Attention(40, 8, 128)), (12, Attention(40, 8, 128, window=128)), (12, Attention(40, 8, 128, window=8192))
    ),
    "windows only": shape((32, Attention(32, 8, 128, window=4096))),
    "full of two sizes": shape((20, Attention(32, 8, 128)), (12, Attention(32, 2, 128))),
    "kimi-linear": shape((7, LATENT), (20, Recurrent("kda", 1, 32 * 128 * 128, 3 * 12288, 4))),
}


def cache(
    name: str, version: tuple[int, ...] = V25, tokens: int = 8192, caching: bool = False, **given: Any
) -> KvCache:
    in_flight = tokens * (2 if version >= V32 else 1)
    form = CacheFormat(16, 2.0, in_flight, prefix_caching=caching, **given)
    return find_kv_cache(SHAPES[name], form, version)


@pytest.mark.parametrize(
    ("name", "version", "gib", "length", "blocks", "tokens", "needed"),
    [
        ("dense", V15, 40, 32768, 18204, 291264, 4831838208),
        ("dense", V25, 40, 32768, 18204, 291264, 4831838208),
        ("dense", V32, 40, 32768, 18204, 291264, 4831838208),
        ("dense", V25, 40, 1000, 18204, 288952, 148635648),
        ("gemma3-27b", V15, 20, 131072, 16384, 37440, 10737418240),
        ("gemma3-27b", V25, 20, 131072, 16384, 184270, 15275130880),
        ("gemma3-27b", V32, 20, 131072, 16384, 145829, 19301662720),
        ("gpt-oss-20b", V15, 40, 131072, 109226, 873808, 3221225472),
        ("gpt-oss-20b", V25, 40, 131072, 109226, 1643116, 3426091008),
        ("gpt-oss-20b", V32, 40, 131072, 109226, 1551920, 3627417600),
        ("12 full, 17 windows", V15, 40, 131072, 109226, 582528, 3221225472),
        ("12 full, 17 windows", V25, 40, 131072, 77101, 1159851, 4853628928),
        ("deepseek-v3", V25, 20, 163840, 19099, 305584, 11513364480),
        ("deepseek-v3.2", V32, 20, 163840, 17136, 274176, 12832604160),
        ("qwen3-next", V15, 40, 262144, 3212, 436832, 6444023808),
        ("qwen3-next", V25, 40, 262144, 3212, 1736095, 6484131840),
        ("qwen3-next of 2", V25, 40, 262144, 6425, 3472732, 3242065920),
        ("32-bit states", V25, 40, 262144, 1654, 1720580, 6539968512),
        ("nemotron-h-8b", V25, 20, 8192, 1260, 737280, 238551040),
        ("nemotron-h-8b of 2", V32, 20, 8192, 2520, 1474560, 119275520),
        ("larger pages", V25, 40, 131072, 16384, 307618, 18300272640),
        ("padded pages", V25, 40, 131072, 131072, 1550949, 3629711360),
        ("windows only", V25, 20, 32768, 10240, 436338, 1612709888),
        ("llama-4", V32, 40, 131072, 54613, 559237, 10066329600),
        ("windows of two sizes", V32, 40, 131072, 54613, 665139, 8463581184),
        ("full of two sizes", V25, 20, 32768, 14246, 227936, 3087007744),
        ("kimi-linear", V25, 20, 131072, 1387, 2524956, 1114767360),
    ],
)
def test_a_cache_holds_what_vllm_says(
    name: str, version: tuple[int, ...], gib: int, length: int, blocks: int, tokens: int, needed: int
) -> None:
    made = cache(name, version)
    assert gib * GIB // made.block_bytes == blocks
    assert made.tokens(blocks, length) == tokens
    assert made.needed_blocks(length) * made.block_bytes == needed


def test_published_logs_have_the_predicted_blocks_and_tokens() -> None:
    # github.com/noonghunna/club-3090 issues 612 and 652: Qwen3.6-35B-A3B with an FP8 cache and prefix caching on an
    # RTX 5090, vLLM 0.24.0: 5.98 and 6.01 GiB of KV cache are 567,978 and 569,878 tokens
    qwen = shape((10, Attention(16, 2, 256)), (30, gated_delta_net(4)))
    made = find_kv_cache(qwen, CacheFormat(16, 1.0, 8192), (0, 24, 0))
    assert [made.tokens(int(gib * GIB / made.block_bytes), 131072) for gib in (5.98, 6.01)] == [567978, 569878]
    # vLLM's issue 24280: NVIDIA-Nemotron-Nano-9B-v2 has blocks of 672 tokens
    nano = shape((4, Attention(40, 8, 128)), (27, Recurrent("mamba2", 1, 128 * 80 * 128, 3 * 12288)))
    assert find_kv_cache(nano, CacheFormat(16, 2.0, 8192, prefix_caching=False), V15).block_size == 672
    # vLLM's issue 48401: those of Nemotron-3-Super-120B-A12B with an FP8 cache and prefix caching have 8320
    given = CacheFormat(16, 1.0, 8192, keeps_every_state=True)
    super_ = find_kv_cache(known_models()["nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"], given, (0, 23, 1))
    assert super_.block_size == 8320
    # vLLM's issue 15871: a request of 32768 tokens to DeepSeek-V2-Lite needs 0.95 GiB
    lite = find_kv_cache(shape((27, replace(LATENT, heads=16, query_rank=None))), CacheFormat(16, 2.0, 8192), V15)
    assert lite.needed_blocks(32768) * lite.block_bytes / GIB == pytest.approx(0.95, abs=0.005)
    # vLLM's issue 43308: Gemma 4 31B with about 50 GiB of KV cache has about 55,000 tokens in vLLM 0.20.0
    gemma4 = cache("larger pages", (0, 20, 0))
    assert gemma4.tokens(50 * GIB // gemma4.block_bytes, 131072) == pytest.approx(55_000, rel=0.02)


def test_the_token_budget_of_a_step_counts_for_windows() -> None:
    made = cache("gemma3-27b of 2", V25, tokens=2048)
    # 8192 blocks for all tokens; 6 tables of ceil((1023 + 2048) / 16) + 1 = 193
    assert made.most_blocks(131072) == 8192 + 6 * 193
    assert made.tokens(65536, 131072) == 918709


def test_the_largest_window_slides_and_smaller_ones_take_their_pages_at_once() -> None:
    # windows of 8192 tokens reach ceil(8191 / 16) = 512 blocks back; those of 128 have 8 of them and the newest one
    assert cache("windows of two sizes").rule == PageRule(16, full=1, windowed=1, window=512, states=9)
    assert cache("llama-4").rule == PageRule(16, full=1, windowed=3, window=512)


def test_every_layer_holds_every_token_of_chunks_with_a_head_that_drafts() -> None:
    drafts = ("--speculative-config", '{"method": "eagle3", "model": "no-such-head", "num_speculative_tokens": 3}')
    assert config_of(SHAPES["llama-4"]).keeps_windows
    assert not config_of(SHAPES["llama-4"], *drafts).keeps_windows
    assert config_of(SHAPES["gemma3-27b"], *drafts).keeps_windows


def test_blocks_of_a_hybrid_model_are_as_large_as_a_state() -> None:
    # Qwen3-Next: ceil((2 x 32 x 128 x 128 + 2 x 3 x 8192) bytes / (16 x 2048 bytes)) x 16
    sizes = {name: cache(name).block_size for name in ("qwen3-next", "qwen3-next of 2", "32-bit states", "kimi-linear")}
    assert sizes == {"qwen3-next": 544, "qwen3-next of 2": 544, "32-bit states": 1056, "kimi-linear": 1920}
    assert cache("nemotron-h-8b").block_size == 1040


def test_prefix_caching_keeps_states() -> None:
    kept = cache("qwen3-next", caching=True)
    assert (kept.block_size, kept.tokens(3212, 262144)) == (544, 1725423)
    # Mamba-2 keeps one at the end of each block until 0.25, and blocks are a multiple of the kernels' chunks
    every = cache("nemotron-h-8b", caching=True, keeps_every_state=True)
    needed = every.most_blocks(8192) * every.block_bytes
    assert (every.block_size, every.tokens(1137, 8192), needed) == (1152, 166326, 1056964608)
    last = cache("nemotron-h-8b", V32, caching=True)
    assert last.most_blocks(8192) == 8 + 6 * 2


def test_layers_and_tokens_of_drafts_have_a_cache() -> None:
    # as vLLM 0.25.1's functions return them for 11 and 62 layers of attention and states with 3 + 2 convolved tokens
    qwen = shape((10, Attention(16, 2, 256)), (30, gated_delta_net(4)))
    draft = (LayerGroup(1, Attention(16, 2, 256), None),)
    form = CacheFormat(16, 2.0, 8192, prefix_caching=False, drafts=2, draft=draft)
    made = find_kv_cache(qwen, form, V25)
    assert (made.block_size, 40 * GIB // made.block_bytes, made.tokens(1778, 131072)) == (1072, 1778, 1765500)
    align = find_kv_cache(qwen, form._replace(prefix_caching=True), V25)
    assert align.tokens(1778, 131072) == 1726266
    layer = LayerGroup(1, SHAPES["deepseek-v3"].groups[0].mixer, None)
    latent = find_kv_cache(SHAPES["deepseek-v3"], form._replace(draft=(layer,)), V25)
    assert latent.tokens(40 * GIB // latent.block_bytes, 163840) == 601328


def test_every_layer_holds_every_token_without_the_hybrid_manager() -> None:
    made = cache("gemma3-27b", keeps_windows=False)
    assert (70 * GIB // made.block_bytes, made.tokens(9249, 131072)) == (9249, 147984)
    assert cache("windows only", keeps_windows=False) == cache("windows only")
    with pytest.raises(ConfigRefused, match="Hybrid KV cache manager is disabled"):
        cache("qwen3-next", keeps_windows=False)


@pytest.mark.parametrize(
    ("name", "version", "gib", "limit", "longest"),
    [
        ("gemma3-27b", V15, 6, 131072, 78640),
        ("gemma3-27b", V25, 6, 131072, 23248),
        ("gemma3-27b", V32, 6, 131072, 11216),
        ("dense", V25, 3, 32768, 21840),
        ("dense", V32, 3, 32768, 21824),
        ("qwen3-next", V25, 5, 262144, 216512),
        ("qwen3-next", V32, 5, 262144, 215968),
        ("qwen3-next", V25, 20, 262144, 262144),
    ],
)
def test_the_longest_request_is_vllms(name: str, version: tuple[int, ...], gib: int, limit: int, longest: int) -> None:
    made = cache(name, version)
    assert made.longest(gib * GIB // made.block_bytes, limit) == longest


def test_pages_that_do_not_divide_are_refused_before_0_25() -> None:
    with pytest.raises(ConfigRefused, match="not divisible"):
        cache("padded pages", V15)


def test_layers_that_read_anothers_cache_have_none() -> None:
    shared = shape((20, Attention(8, 2, 256)), (10, Attention(8, 2, 256, shared=True)))
    # 16 tokens of 20 layers with 2 heads of 256 numbers for keys and values
    assert find_kv_cache(shared, CacheFormat(16, 2.0, 8192), V25).block_bytes == 16 * 20 * 2 * 2 * 256 * 2


def test_scales_of_each_head_take_two_numbers_of_four_bytes() -> None:
    made = find_kv_cache(SHAPES["dense"], CacheFormat(16, 1.0, 8192, head_scales=True), V25)
    assert made.block_bytes == 36 * 16 * 8 * (2 * 128 + 8)


def test_prefixes_of_recurrent_models_are_cached_by_default_from_0_32_on() -> None:
    hybrid, pure = SHAPES["qwen3-next"], shape((24, mamba2()))
    assert [caches_prefixes(None, hybrid, version) for version in (V15, V25, V32)] == [False, False, True]
    assert caches_prefixes(True, hybrid, V25)
    assert not caches_prefixes(None, pure, V32)
    assert caches_prefixes(None, SHAPES["gemma3-27b"], V15)
    assert not caches_prefixes(False, SHAPES["gemma3-27b"], V32)


def test_mambas_states_are_kept_by_block_before_0_32() -> None:
    assert keeps_every_state(None, True, V25)
    assert keeps_every_state("none", True, V25)
    assert not keeps_every_state("align", True, V25)
    assert not keeps_every_state("all", False, V25)
    assert not keeps_every_state(None, True, V32)
    with pytest.raises(ConfigRefused, match=r"invalid choice: 'all' \(choose from 'align', 'none'\)"):
        keeps_every_state("all", True, V32)


def test_sparse_latent_attention_has_its_own_8_bit_format() -> None:
    made = find_kv_cache(SHAPES["deepseek-v3.2"], CacheFormat(16, 1.0, 8192), V25)
    # 656 bytes of a token in a layer, and 132 of its indexer
    assert made.block_bytes == 61 * 16 * (656 + 132)


@pytest.mark.parametrize("version", [V25, V32])
@pytest.mark.parametrize("tokens", [1000, 131072])
def test_the_memory_rules_bound_is_never_above_what_vllm_requires(version: tuple[int, ...], tokens: int) -> None:
    for name, model in known_models().items():
        if model.unread is None:
            made = find_kv_cache(model, CacheFormat(16, 2.0, 8192, prefix_caching=False), version)
            assert model.least_kv_bytes(tokens, 2.0) <= made.needed_blocks(tokens) * made.block_bytes, name


def test_states_have_the_numbers_that_are_asked_for() -> None:
    # Qwen3.5's states have 32 bits by default: with 16, blocks of 544 tokens are as large as a state, not of 1056
    qwen = shape((10, Attention(16, 2, 256)), (30, gated_delta_net(4)))
    sizes = [config_of(qwen, *given).kv_cache.block_size for given in ((), ("--mamba-ssm-cache-dtype", "float16"))]
    assert sizes == [1056, 544]
    assert with_state_format(qwen, "auto", V25) == qwen
    with pytest.raises(ConfigRefused, match=r"invalid choice: 'bfloat16' \(choose from 'auto', 'float16', 'float32'\)"):
        with_state_format(qwen, "bfloat16", V15)
