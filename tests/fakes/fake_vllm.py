#!/usr/bin/env python3
"""A stand-in for the `vllm` command, for tests that start servers in quantity. Standard library only, ready in < 0.3 s.

    fake_vllm.py --version                     prints 0.32.0+fake
    fake_vllm.py serve MODEL --port P [flags]  a server with a child that outlives it, like vLLM's EngineCore
    fake_vllm.py bench serve [flags]           a benchmark whose figures come from the server's landscape

FAKE_VLLM, a JSON object, sets its behaviour (FAKE_VLLM_BASE is the same with less precedence):

    startup_s      seconds before it listens (0.05)
    fail           how a start fails: "invalid", "oom", "kv", "weights", "crash", "hang",
                   "exit0"
    fail_when      [{"when": {"max_num_seqs": "512", …}, "fail": "oom"}, …]: the same for chosen flags; a rule may
                   also hold any other key of this list, such as "crash_after"
    serves         the model name that it reports instead of the right one
    sigterm        "ignore": the server survives SIGTERM; "slow": it takes `sigterm_s` seconds (1)
    child_sigterm  "ignore": so does its child
    child_setsid   true: the child leaves the session and the group
    log_mb         MB of lines that it logs when it starts (0)
    requires_key   true: /v1 answers 401 without the key in VLLM_API_KEY, as vLLM does; "health": so does /health
    crash_after    the engine dies at the n-th request; `crash` "oom" says out of memory, otherwise a fatal error
    fail_every     every n-th request is answered with 500
    compile_s      seconds by which the first run with each number of requests is slower (no sleep), unless a server
                   with the same TRITON_CACHE_DIR had one
    token_s        seconds between two streamed tokens (0)
    bench          "exit": the client ends with 1 and no result; "hang": it never ends
    figures        fields of the result file that replace the client's own
    bench_s        seconds that a scored benchmark takes (0.05)
    lost_rank      "hang": rank 0 goes on when another rank ends; otherwise it crashes
    rank_fails     how the start of the other ranks fails: "oom"
    slower         factor by which everything takes longer (1)
    noise          relative noise of its figures (0.01), seeded by --seed
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from typing import Any, NoReturn

from fake_landscape import DEFAULTS, OOM_ABOVE, graphs, kv_tokens, number

VERSION = "0.32.0+fake"

VALUES = (
    "host port served-model-name load-format seed dtype quantization kv-cache-dtype max-model-len max-num-seqs "
    "max-num-batched-tokens block-size gpu-memory-utilization kv-cache-memory-bytes max-cudagraph-capture-size "
    "compilation-config attention-backend scheduling-policy stream-interval api-server-count speculative-config "
    "performance-mode generation-config override-generation-config tokenizer download-dir revision uvicorn-log-level "
    "hf-overrides long-prefill-token-threshold prefix-caching-hash-algo tensor-parallel-size watermark log-level "
    "pipeline-parallel-size data-parallel-size data-parallel-rpc-port nnodes node-rank master-addr master-port"
)
SWITCHES = (
    "enforce-eager enable-prefix-caching enable-chunked-prefill async-scheduling trust-remote-code disable-log-stats "
    "headless enable-log-requests disable-uvicorn-access-log skip-tokenizer-init"
)
CHOICES = {
    "dtype": ["auto", "half", "float16", "bfloat16", "float", "float32"],
    "scheduling-policy": ["fcfs", "priority"],
    "performance-mode": ["balanced", "interactivity", "throughput"],
}
SHORT = {"quantization": "-q", "compilation-config": "-cc", "speculative-config": "-sc", "api-server-count": "-asc"}


def behaviour() -> dict[str, Any]:
    """Return the fake's behaviour from the environment."""
    return {**json.loads(os.environ.get("FAKE_VLLM_BASE", "{}")), **json.loads(os.environ.get("FAKE_VLLM", "{}"))}


def say(who: str, source: str, text: str, level: str = "INFO") -> None:
    """Print one line as vLLM's logger does."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"({who} pid={os.getpid()}) {level} {stamp} [{source}] {text}", flush=True)


def serve_parser() -> argparse.ArgumentParser:
    """Return the parser of `vllm serve`, with the flags that the fake supports."""
    parser = argparse.ArgumentParser("vllm serve", usage="vllm serve [model_tag] [options]", allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    for name in VALUES.split():
        names = [SHORT[name], f"--{name}"] if name in SHORT else [f"--{name}"]
        kind = int if isinstance(DEFAULTS.get(name.replace("-", "_")), int) else str
        parser.add_argument(*names, type=kind, choices=CHOICES.get(name))
    for name in SWITCHES.split():
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    parser.add_argument("--cudagraph-capture-sizes", nargs="+", type=int)
    parser.add_argument("-O", "--optimization-level")
    return parser


def parse_serve(argv: list[str]) -> dict[str, Any]:
    """Return the flags by name; exit 2 with vLLM's text for an unknown one."""
    dotted = [word for word in argv if word.startswith(("-cc.", "--compilation-config."))]
    words = [re.sub(r"^--[^=]*", lambda name: name[0].replace("_", "-"), word) for word in argv]
    parsed, unknown = serve_parser().parse_known_args([word for word in words if word not in dotted])
    if unknown:
        print("usage: vllm [-h] [-v] {serve,bench} ...", file=sys.stderr)
        print(f"vllm: error: unrecognized arguments: {' '.join(unknown)}", file=sys.stderr)
        raise SystemExit(2)
    flags = vars(parsed)
    flags["compilation_config"] = " ".join([flags["compilation_config"] or "", *dotted]).strip()
    return flags


def die(text: str) -> NoReturn:
    """End a start as vLLM does: the cause from the engine, then the parent's last line, exit code 1."""
    say("EngineCore", "core.py:1510", "EngineCore failed to start.", "ERROR")
    say("EngineCore", "core.py:1510", "Traceback (most recent call last):", "ERROR")
    say("EngineCore", "core.py:1510", text, "ERROR")
    print("Traceback (most recent call last):")
    print("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", flush=True)
    raise SystemExit(1)


def check(flags: dict[str, Any], fail: str | None) -> None:
    """End the program if the flags or the behaviour say that the start fails."""
    seqs, tokens = flags.get("max_num_seqs"), number(flags, "max_num_batched_tokens")
    if fail == "exit0":
        raise SystemExit(0)
    if fail == "invalid" or (seqs is not None and tokens < seqs):
        rule = f"max_num_batched_tokens ({tokens:.0f}) must be greater than or equal to max_num_seqs ({seqs})."
        print('Traceback (most recent call last):\n  File "fake_vllm.py", line 1, in <module>')
        print(
            f"pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n"
            f"  Value error, {rule} [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]",
            flush=True,
        )
        raise SystemExit(1)
    if fail == "oom" or number(flags, "gpu_memory_utilization") > OOM_ABOVE:
        die(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "16.00 GiB of which 1.00 GiB is free."
        )
    length = number(flags, "max_model_len")
    if fail == "kv" or kv_tokens(flags) < length:
        die(
            f"ValueError: To serve at least one request with the model's max seq len ({length:.0f}), (0.38 GiB KV "
            "cache is needed, which is larger than the available KV cache memory (0.10 GiB). Based on the available "
            "memory, the estimated maximum model length is 8192. Try increasing `gpu_memory_utilization` or "
            "decreasing `max_model_len` when initializing the engine."
        )
    if fail == "weights":
        die("RuntimeError: Cannot find any model weights with `/model`")
    if fail == "crash":
        die("RuntimeError: the fake engine is set to crash")


def engine_core(does: dict[str, Any]) -> int:
    """Fork the child that stands for EngineCore and return its id; it lives until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    if does.get("child_setsid"):
        os.setsid()
    ignore = does.get("child_sigterm") == "ignore"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        signal.pause()


def serve(argv: list[str]) -> None:
    """Serve until a signal ends the process."""
    flags, does = parse_serve(argv), behaviour()
    for rule in does.get("fail_when", []):
        if all(str(flags.get(name)) == str(value) for name, value in rule["when"].items()):
            does.update({key: value for key, value in rule.items() if key != "when"})
    say("APIServer", "api_utils.py:347", f"version {VERSION} (a fake: no model, no GPU)")
    set_args = {name: value for name, value in flags.items() if value not in (None, "")}
    say("APIServer", "api_utils.py:286", f"non-default args: {set_args}")
    for line in range(int(does.get("log_mb", 0) * 1000)):
        print(f"{line:>999}", flush=line % 1000 == 0)
    if does.get("sigterm") == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    core = engine_core(does)
    if does.get("fail") == "hang":
        while True:
            signal.pause()
    try:
        check(flags, does.get("fail"))
    except SystemExit:
        os.kill(core, signal.SIGKILL)
        raise
    from fake_ranks import meet

    meet(flags, does)
    time.sleep(does.get("startup_s", 0.05))
    tell_engine(flags)

    from fake_server import run

    run(flags, does, core)


def tell_engine(flags: dict[str, Any]) -> None:
    """Print the figures that vLLM prints while it starts."""
    length, tokens = number(flags, "max_model_len"), kv_tokens(flags)
    backend = flags.get("attention_backend") or "FLASH_ATTN"
    say("EngineCore", "cuda.py:507", f"Using {backend} attention backend out of potential backends: ['{backend}'].")
    say("EngineCore", "model_runner.py:425", "Model loading took 0.93 GiB memory and 0.010000 seconds")
    if graphs(flags):
        say("EngineCore", "monitor.py:20", "torch.compile took 0.02 s in total")
    say("EngineCore", "gpu_worker.py:760", f"Available KV cache memory: {tokens / 80_000:.2f} GiB")
    say(
        "EngineCore",
        "kv_cache_utils.py:2327",
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for "
        f"{length:,.0f} tokens per request: {tokens / length:.2f}x",
    )
    if graphs(flags):
        say("EngineCore", "model_runner.py:1128", "Graph capturing finished in 1 secs, took 0.12 GiB")
    say("EngineCore", "core.py:402", "init engine (profile, create kv cache, warmup model) took 0.05 s")


def main(argv: list[str]) -> None:
    """Run the command line."""
    if argv in (["--version"], ["-v"]):
        print(VERSION)
    elif argv[:2] == ["bench", "serve"]:
        from fake_bench import bench

        bench(argv[2:], behaviour())
    elif argv[:1] == ["serve"] and any(word.startswith(("--help", "-h")) for word in argv):
        serve_parser().print_help()
    elif argv[:1] == ["serve"]:
        serve(argv[1:])
    else:
        print(f"usage: vllm [-h] [-v] {{serve,bench}} ...\nvllm: error: the fake cannot do {argv}", file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
