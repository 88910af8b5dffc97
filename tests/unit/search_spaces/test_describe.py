"""What a model is, in one line."""

import pytest

from search_spaces import known_models
from search_spaces.catalogue.describe import described


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "Qwen/Qwen3-30B-A3B",
            # 2 × 48 layers × 4 heads × 128 numbers × 2 bytes = 96 KiB
            "30.5 B weights (56.9 GiB); 48 layers with full attention; 128 experts, 8 chosen, in 48 layers; "
            "KV cache 96 KiB a token in 16 bits",
        ),
        (
            "deepseek-ai/DeepSeek-V2-Lite",
            # 27 layers × (512 + 64) numbers × 2 bytes = 30.375 KiB
            "15.7 B weights (29.3 GiB); 27 layers with latent attention (MLA); 64 experts and a shared one, 6 chosen, "
            "in 26 layers; KV cache 30.38 KiB a token in 16 bits",
        ),
        (
            "openai/gpt-oss-20b",
            "20.9 B weights (12.8 GiB, mxfp4); 12 layers with a window of 128 tokens, 12 layers with full attention; "
            "32 experts, 4 chosen, in 24 layers; KV cache 24 KiB a token in 16 bits",
        ),
        (
            "meta-llama/Llama-4-Scout-17B-16E-Instruct",
            "107.8 B weights (200.7 GiB); 36 layers with chunks of 8,192 tokens, 12 layers with full attention; "
            "16 experts and a shared one, 1 chosen, in 48 layers; KV cache 48 KiB a token in 16 bits",
        ),
        (
            "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
            # 27 × (128 × 80 × 128 numbers of the state in 4 bytes, and 3 × (10,240 + 2 × 8 × 128) in 2)
            "8.9 B weights (16.6 GiB); 27 layers with a state (mamba2), 4 layers with full attention; "
            "KV cache 16 KiB a token in 16 bits; state 136.9 MiB a sequence",
        ),
        ("moonshotai/Kimi-K3", "not understood: routed_expert_hidden_size 3584"),
    ],
)
def test_a_model_is_described_by_its_layers(name: str, line: str) -> None:
    assert described(known_models()[name]) == line
