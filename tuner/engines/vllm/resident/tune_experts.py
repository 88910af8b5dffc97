"""Find settings of vLLM's Triton kernels of experts for one card and shape. vLLM's Python runs it, on a free GPU.

    python tune_experts.py '{"file": "E=128,N=768,device_name=NVIDIA_H200.json", "experts": 128, "size": 768,
                             "hidden": 2048, "top_k": 8, "fp8": false, "block": null, "folder": "kernels"}'

`experts` are those of one GPU, and `size` is its part of an expert's intermediate size. The file has for each number of
tokens the settings with the shortest time, vLLM's default ones included, as `benchmarks/kernels/benchmark_moe.py` in
vLLM's repository writes it. Never run on a GPU.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from importlib import import_module
from typing import Any

KERNELS = "vllm.model_executor.layers.fused_moe"

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
CALLS, REPLAYS = 10, 5
"""Calls in a captured graph, and replays of it, of which the mean counts."""


def candidates(block: list[int] | None) -> list[dict[str, int]]:
    """Return the settings to try; with scales by blocks, a tile holds whole blocks."""
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
    grid = itertools.product((16, 32, 64, 128), (64, 128, 256), (64, 128), (1, 16), (4, 8), (3, 4))
    every = [dict(zip(names, values, strict=True)) for values in grid]
    if block is None:
        return every
    return [each for each in every if each["BLOCK_SIZE_N"] % block[0] == 0 and each["BLOCK_SIZE_K"] % block[1] == 0]


class Experts:
    """Random experts and tokens of a shape on the GPU."""

    def __init__(self, shape: dict[str, Any]) -> None:
        torch = self.torch = import_module("torch")
        self.too_large = import_module("triton.runtime.autotuner").OutOfResources
        self.kernels = import_module(KERNELS)
        self.shape = shape
        experts, size, hidden, block = shape["experts"], shape["size"], shape["hidden"], shape["block"]
        stored = torch.float8_e4m3fn if shape["fp8"] else torch.bfloat16
        shapes = ((experts, 2 * size, hidden), (experts, hidden, size))
        self.weights = [(torch.randn(each, dtype=torch.bfloat16, device="cuda") / 10).to(stored) for each in shapes]
        self.quantization = None
        if shape["fp8"]:
            blocks = [(e, -(-n // block[0]), -(-k // block[1])) if block else (e,) for e, n, k in shapes]
            scales = [torch.rand(each, dtype=torch.float32, device="cuda") for each in blocks]
            configs = import_module(f"{KERNELS}.config")
            self.quantization = configs.fp8_w8a8_moe_quant_config(*scales, block_shape=block)

    def microseconds(self, tokens: int, settings: dict[str, int]) -> float | None:
        """Return the time of one call of the kernels; None for settings that the GPU cannot run."""
        torch, kernels = self.torch, self.kernels
        state = torch.randn((tokens, self.shape["hidden"]), dtype=torch.bfloat16, device="cuda")
        scores = torch.randn((tokens, self.shape["experts"]), dtype=torch.bfloat16, device="cuda")

        def call() -> None:
            with kernels.override_config(settings):
                weights, chosen, *_ = kernels.fused_topk(state, scores, self.shape["top_k"], renormalize=True)
                kernels.fused_experts(state, *self.weights, weights, chosen, quant_config=self.quantization)

        try:
            call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(CALLS):
                    call()
            graph.replay()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
        except self.too_large:
            return None
        return float(begin.elapsed_time(end)) * 1000 / (CALLS * REPLAYS)


def tune(experts: Any, defaults: Any, block: list[int] | None) -> dict[int, dict[str, int]]:
    """Return the fastest settings for each number of tokens; `defaults` returns vLLM's own."""
    found = {}
    for tokens in TOKENS:
        own = defaults(tokens)
        begin = experts.microseconds(tokens, own)
        best, least = own, begin
        for settings in candidates(block):
            time = experts.microseconds(tokens, settings)
            if time is not None and (least is None or time < least):
                best, least = settings, time
        print(f"{tokens} tokens: {_shown(begin)} by default, {_shown(least)} tuned", flush=True)
        found[tokens] = best
    return found


def _shown(microseconds: float | None) -> str:
    return "does not run" if microseconds is None else f"{microseconds:.0f} µs"


def main(shape: dict[str, Any]) -> None:
    """Write the file of a shape.

    Raises:
        SystemExit: on another card than the file's.
    """
    config = import_module("vllm.config")
    fused_moe = import_module(f"{KERNELS}.fused_moe")
    block, dtype = shape["block"], "fp8_w8a8" if shape["fp8"] else None
    name = fused_moe.get_config_file_name(shape["experts"], shape["size"], dtype, block)
    if name != shape["file"]:
        raise SystemExit(f"this GPU's file is {name}, not {shape['file']}; run it on the card of the study")

    def defaults(tokens: int) -> Any:
        sizes = (shape["experts"], shape["size"], shape["hidden"], shape["top_k"])
        return fused_moe.get_default_config(tokens, *sizes, dtype, block)

    with config.set_current_vllm_config(config.VllmConfig()):
        found = tune(Experts(shape), defaults, block)
    os.makedirs(shape["folder"], exist_ok=True)
    path = os.path.join(shape["folder"], name)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump({"triton_version": import_module("triton").__version__, **found}, file, indent=1)
    os.replace(f"{path}.part", path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
