"""The command line of a simulated server: vLLM's defaults by version and card, and its refusals."""

from typing import Any

import pytest

from search_spaces import hardware_named, known_models
from tests.unit.engines.simulator.helpers import SMALL, config
from tuner.engines.simulator.cuda_graphs import LaunchMode, largest_default_size
from tuner.engines.simulator.flags import FlagError, parse_flags
from tuner.engines.simulator.precision import ConfigRefused, Site, find_backend
from tuner.engines.simulator.serve_config import ServeConfig


def on_h200(*arguments: str) -> ServeConfig:
    return config(*arguments, card="h200", version=(0, 25, 1))


def test_defaults_on_a_t4_equal_the_published_log() -> None:
    # FLASHINFER, fp16, 2,048 tokens a step, asynchronous scheduling, 51 sizes up to 512, 256 sequences
    resolved = config()
    assert (resolved.backend, resolved.dtype, resolved.max_num_batched_tokens) == ("FLASHINFER", "float16", 2048)
    assert (resolved.max_num_seqs, resolved.async_scheduling, resolved.gpu_memory_utilization) == (256, True, 0.9)
    assert (len(resolved.graphs.sizes), resolved.graphs.largest, resolved.block_size) == (51, 512, 16)
    assert resolved.prefix_caching
    assert resolved.chunked_prefill


def test_the_largest_default_graph_is_that_of_the_version_and_the_card() -> None:
    cards = {(0, 27): [512, 512, 512], (0, 28): [512, 1024, 512]}
    found = {version: [largest_default_size(version, card) for card in ((9, 0), (10, 3), (12, 0))] for version in cards}
    assert found == cards


def test_defaults_on_an_h200() -> None:
    resolved = on_h200()
    assert (resolved.backend, resolved.dtype, resolved.max_num_batched_tokens) == ("FLASH_ATTN", "bfloat16", 8192)
    assert (resolved.max_num_seqs, resolved.gpu_memory_utilization, resolved.reserve_full) == (1024, 0.92, True)


@pytest.mark.parametrize(
    ("arguments", "attribute", "value"),
    [
        (["--max-model-len", "16K"], "max_model_len", 16384),
        (["--max_num_seqs=8"], "max_num_seqs", 8),
        (["-q", "fp8"], "quantization", "fp8"),
        (["--kv-cache-memory-bytes", "2G"], "kv_cache_bytes", 2 * 2**30),
        (["--no-enable-prefix-caching"], "prefix_caching", False),
        (["--no-enable-chunked-prefill"], "max_num_batched_tokens", 32768),
        (["--override-generation-config", '{"temperature": 0.3}'], "temperature", 0.3),
        (["--max-num-batched-tokens", "100"], "max_num_seqs", 100),
        (["--attention-backend", "triton_attn"], "backend", "TRITON_ATTN"),
        (["--speculative-config", '{"method": "suffix"}'], "async_scheduling", False),
        (["--stream-interval", "4"], "stream_interval", 4),
    ],
)
def test_a_flag_sets_its_attribute(arguments: list[str], attribute: str, value: object) -> None:
    assert getattr(config(*arguments), attribute) == value


def launches(resolved: ServeConfig, decodes: int, mixed: int) -> tuple[LaunchMode, LaunchMode]:
    return resolved.graphs.launch(decodes, decodes_only=True), resolved.graphs.launch(mixed, decodes_only=False)


@pytest.mark.parametrize(
    ("arguments", "decode", "mixed"),
    [
        ([], LaunchMode.FULL, LaunchMode.PIECEWISE),
        (["--enforce-eager"], LaunchMode.EAGER, LaunchMode.EAGER),
        (["-O0"], LaunchMode.EAGER, LaunchMode.EAGER),
        (["-O", "1"], LaunchMode.PIECEWISE, LaunchMode.PIECEWISE),
        (["-cc.cudagraph_mode=NONE"], LaunchMode.COMPILED, LaunchMode.COMPILED),
        (["-cc.cudagraph_mode=FULL"], LaunchMode.FULL, LaunchMode.FULL),
        (["-O.cudagraph_mode", "FULL"], LaunchMode.FULL, LaunchMode.FULL),
        (["-cc.cudagraph_mode=FULL_DECODE_ONLY"], LaunchMode.FULL, LaunchMode.COMPILED),
        (["-O0", "-cc.cudagraph_mode=FULL_DECODE_ONLY"], LaunchMode.FULL, LaunchMode.EAGER),
        (["-O0", "-cc.cudagraph_mode=FULL_AND_PIECEWISE"], LaunchMode.EAGER, LaunchMode.EAGER),
        (["--max-cudagraph-capture-size", "32"], LaunchMode.COMPILED, LaunchMode.COMPILED),
        (
            ["-cc", '{"cudagraph_mode": "FULL", "max_cudagraph_capture_size": 32}'],
            LaunchMode.COMPILED,
            LaunchMode.COMPILED,
        ),
        # sizes above the token budget are dropped without a message, and none is left
        (
            ["--cudagraph-capture-sizes", "64", "--max-num-batched-tokens", "48"],
            LaunchMode.COMPILED,
            LaunchMode.COMPILED,
        ),
    ],
)
def test_launch_modes_of_50_decodes_and_of_a_mixed_step_of_200_tokens(
    arguments: list[str], decode: LaunchMode, mixed: LaunchMode
) -> None:
    assert launches(on_h200(*arguments), 50, 200 if "48" not in arguments else 40) == (decode, mixed)


def test_a_captured_step_is_padded_to_the_next_size() -> None:
    assert [config().graphs.padded(tokens) for tokens in (3, 50, 56, 257)] == [4, 56, 56, 272]
    exact = config("--cudagraph-capture-sizes", "1", "2", "40", "50")
    assert (exact.graphs.padded(41), exact.graphs.largest) == (50, 50)


def test_no_graph_holds_attention_in_chunks() -> None:
    scout = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    made = {words: config(*words, card="h200", model=scout) for words in ((), ("--enforce-eager",))}
    assert [launches(each, 50, 200) for each in made.values()] == [
        (LaunchMode.PIECEWISE, LaunchMode.PIECEWISE),
        (LaunchMode.EAGER, LaunchMode.EAGER),
    ]
    with pytest.raises(ConfigRefused, match=r"CUDAGraphMode\.FULL is not supported with ChunkedLocalAttention"):
        config("-cc.cudagraph_mode=FULL", card="h200", model=scout)


def test_flashinfer_has_no_full_graph_for_drafts() -> None:
    drafting = config("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}')
    assert drafting.graphs.launch(50, decodes_only=True) is LaunchMode.PIECEWISE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speculative-config", "ngram"], "Value ngram cannot be converted to JSON."),
        (
            ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048", "--max-model-len", "4096"],
            "max_num_batched_tokens (2048) is smaller than max_model_len (4096).",
        ),
        (["--max-model-len", "65536"], "User-specified max_model_len (65536) is greater than the derived"),
        (["--dtype", "bfloat16"], "Bfloat16 is only supported on GPUs with compute capability of at least 8.0."),
        (["--block-size", "24"], "argument --block-size: invalid choice: 24"),
        (["--block-size", "8"], "No common block size for 8."),
        (["--attention-backend", "FLASH_ATTN"], "Reason: ['compute capability not supported']"),
        (["--attention-backend", "auto"], "Unknown attention backend: 'auto'"),
        (["--quantization", "nope"], "--quantization nope: not simulated; measure that with the engine vllm"),
        (["--quantization", "awq"], "Cannot find the config file for awq"),
        (["-O4"], "Input should be 0, 1, 2 or 3"),
        (["--max-cudagraph-capture-size", "0"], "Maximum cudagraph size should be greater than or equal to 1"),
        (
            ["--cudagraph-capture-sizes", "1", "8", "--max-cudagraph-capture-size", "16"],
            "customized max_cudagraph_capture_size(=16) should be consistent with the max value of "
            "cudagraph_capture_sizes(=8)",
        ),
        (
            ["--async-scheduling", "--speculative-config", '{"method": "suffix"}'],
            "async scheduling is only supported with EAGLE/MTP kind of speculative decoding",
        ),
        (["--speculative-config", '{"method": "ngram"}'], "num_speculative_tokens must be provided"),
        (
            [
                "--speculative-config",
                '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, "prompt_lookup_max": 2}',
            ],
            "prompt_lookup_min=4 must be <= prompt_lookup_max=2",
        ),
        (["--gpu-memory-utilization", "1.5"], "less than or equal to 1"),
    ],
)
def test_refusals_have_vllms_message(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigRefused) as caught:
        config(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("version", "method"), [((0, 15, 1), "fp8_per_block"), ((0, 28, 0), "bitsandbytes")])
def test_the_methods_that_vllm_has_are_without_the_one_it_lacks(version: tuple[int, ...], method: str) -> None:
    with pytest.raises(ConfigRefused, match=rf"Unknown quantization method: {method}\. (?!.*'{method}')"):
        config("--quantization", method, version=version)


def test_suffix_decoding_needs_its_package() -> None:
    from tuner.engines.simulator.serve_config import resolve_serve_config

    arguments = ["--speculative-config", '{"method": "suffix"}']
    with pytest.raises(ConfigRefused, match=r"pip install arctic-inference==0\.1\.1"):
        resolve_serve_config(
            arguments, {}, known_models()["Qwen/Qwen2.5-0.5B"], hardware_named("t4"), (0, 15, 1), frozenset()
        )


def test_a_turing_card_has_no_fp8_cache_in_newer_versions() -> None:
    with pytest.raises(ConfigRefused, match=r"native FP8 .* requires SM89"):
        config("--kv-cache-dtype", "fp8", version=(0, 25, 1))


def test_only_triton_serves_kv_caches_with_scales_per_token_and_head() -> None:
    """As vLLM 0.25.1 chose on an H200 (docs/reports/data/h200-7b.csv), where FP8 caches keep FlashAttention."""
    site = Site(hardware_named("h200"), (0, 25, 1), frozenset({"flashinfer"}))
    backends = {
        kv_dtype: find_backend(None, site, kv_dtype)
        for kv_dtype in ("auto", "fp8", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
    }
    assert list(backends.values()) == ["FLASH_ATTN", "FLASH_ATTN", *["TRITON_ATTN"] * 3]
    with pytest.raises(ConfigRefused, match="FLASH_ATTN is not valid"):
        find_backend("FLASH_ATTN", site, "int8_per_token_head")


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (["-cc.pass_config.a=1", "-O.pass_config.b", "text"], {"pass_config": {"a": 1, "b": "text"}}),
        (["-cc.custom_ops+", "+a,-b"], {"custom_ops": ["+a", "-b"]}),
        (["-cc.mode=3", "-cc", '{"level": 1}'], {"mode": 3}),  # vLLM appends the joined keys, and the last flag counts
    ],
)
def test_keys_with_dots_are_one_object(words: list[str], config: dict[str, Any]) -> None:
    assert parse_flags(words)["compilation_config"] == config


@pytest.mark.parametrize("words", [["-tp.a", "2"], ["-cc."], ["-cc.mode"], ["-cc." + "a." * 30 + "b", "1"]])
def test_keys_that_no_object_can_have_are_refused(words: list[str]) -> None:
    with pytest.raises(FlagError):
        parse_flags(words)


DEEPSEEK = "deepseek-ai/DeepSeek-V2-Lite"


@pytest.mark.parametrize(
    ("card", "version", "argv", "backend", "block"),
    [
        ("h200", (0, 25, 1), (), "FLASH_ATTN_MLA", 16),
        ("a100", (0, 25, 1), (), "TRITON_MLA", 16),
        ("rtxpro6000", (0, 32, 0), (), "TRITON_MLA", 16),
        ("h200", (0, 25, 1), ("--kv-cache-dtype", "fp8"), "FLASHMLA", 64),  # FLASH_ATTN_MLA reads 16 bits only
        ("h200", (0, 25, 1), ("--attention-backend", "FLASHMLA"), "FLASHMLA", 64),
        ("h200", (0, 15, 1), ("--attention-backend", "FLASHMLA", "--block-size", "16"), "FLASHMLA", 64),
        ("h200", (0, 25, 1), ("--attention-backend", "TRITON_MLA", "--block-size", "32"), "TRITON_MLA", 32),
    ],
)
def test_latent_attention_has_backends_with_block_sizes_of_their_own(
    card: str, version: tuple[int, ...], argv: tuple[str, ...], backend: str, block: int
) -> None:
    made = config(*argv, card=card, model=DEEPSEEK, version=version)
    assert (made.backend, made.block_size) == (backend, block)


@pytest.mark.parametrize(
    ("card", "model", "argv", "reason"),
    [
        ("h200", DEEPSEEK, ("FLASHMLA", "--block-size", "32"), "block_size not supported"),
        ("h200", DEEPSEEK, ("CUTLASS_MLA",), "compute capability not supported"),
        ("a100", DEEPSEEK, ("FLASH_ATTN_MLA",), "compute capability not supported"),
        ("h200", DEEPSEEK, ("FLASH_ATTN_MLA", "--kv-cache-dtype", "fp8"), "kv_cache_dtype not supported"),
        ("h200", DEEPSEEK, ("FLASH_ATTN",), "MLA not supported"),
        ("h200", SMALL, ("FLASHMLA",), "non-MLA not supported"),
        ("h200", "deepseek-ai/DeepSeek-V3.2", ("FLASHMLA",), "sparse not supported"),
    ],
)
def test_a_backend_of_latent_attention_is_refused_with_its_reason(
    card: str, model: str, argv: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigRefused, match=rf"Reason: \['{reason}'\]"):
        config("--attention-backend", *argv, card=card, model=model, version=(0, 25, 1))


def test_sparse_latent_attention_needs_hopper_or_blackwell() -> None:
    assert config(card="h200", model="deepseek-ai/DeepSeek-V3.2", version=(0, 25, 1)).backend == "FLASHMLA_SPARSE"
    with pytest.raises(ConfigRefused, match="No valid attention backend found"):
        config(card="a100", model="deepseek-ai/DeepSeek-V3.2", version=(0, 25, 1))
