"""Some flags of SGLang 0.5.23, with the choices and types that its own parser has."""

from __future__ import annotations

import argparse

SWITCHES = (
    *("--enable-metrics", "--disable-radix-cache", "--enable-mixed-chunk", "--disable-overlap-schedule"),
    *("--disable-decode-cuda-graph", "--disable-prefill-cuda-graph", "--enable-torch-compile"),
)
NUMBERS = (
    *("--max-running-requests", "--max-prefill-tokens", "--max-total-tokens", "--chunked-prefill-size"),
    *("--prefill-max-requests", "--page-size", "--num-continuous-decode-steps", "--stream-interval"),
    *("--tokenizer-worker-num", "--cuda-graph-max-bs-decode", "--speculative-num-draft-tokens"),
    *("--speculative-ngram-max-bfs-breadth", "--context-length", "--random-seed"),
)
CHOICES = {
    "--schedule-policy": ["lpm", "random", "fcfs", "dfs-weight", "lof", "priority", "routing-key", "hrrn"],
    "--attention-backend": ["triton", "torch_native", "flex_attention", "fa3", "fa4", "flashinfer", "trtllm_mha"],
    "--sampling-backend": ["pytorch", "intel_xpu", "ascend", "flashinfer"],
    "--kv-cache-dtype": ["auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16"],
    "--quantization": ["awq", "fp8", "mxfp8", "gptq", "w8a8_int8", "w8a8_fp8", "compressed-tensors"],
    "--speculative-ngram-match-type": ["BFS", "PROB"],
}


class ServerArgs:
    """The name under which SGLang has its parser."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add the flags."""
        parser.add_argument("--model-path", "--model", required=True)
        parser.add_argument("--served-model-name")
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--api-key")
        parser.add_argument("--load-format", default="auto")
        parser.add_argument("--speculative-algorithm")
        parser.add_argument("--mem-fraction-static", type=float)
        parser.add_argument("--schedule-conservativeness", type=float, default=1.0)
        for short, long in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data")):
            parser.add_argument(f"--{short}-size", f"--{long}-parallel-size", type=int, default=1)
        for flag in SWITCHES:
            parser.add_argument(flag, action="store_true")
        for flag in NUMBERS:
            parser.add_argument(flag, type=int)
        for flag, choices in CHOICES.items():
            parser.add_argument(flag, choices=choices)
