"""`tuner-llama-server`: llama.cpp's server from the package `xllamacpp`, with the flags of `llama-server`.

The package embeds the server as a library. This program maps flags to its parameters, starts it, and ends with it. It
knows the flags in `flag_table` alone and refuses any other, as `llama-server` does with exit code 1.

It imports nothing of the tuner, so that it starts in less than a second.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import xllamacpp

INTEGERS = {
    ("--ctx-size", "-c"): "n_ctx",
    ("--parallel", "-np"): "n_parallel",
    ("--batch-size", "-b"): "n_batch",
    ("--ubatch-size", "-ub"): "n_ubatch",
    ("--threads", "-t"): "cpuparams.n_threads",
    ("--threads-batch", "-tb"): "cpuparams_batch.n_threads",
    ("--threads-http",): "n_threads_http",
    ("--poll",): "cpuparams.poll",
    ("--gpu-layers", "--n-gpu-layers", "-ngl"): "n_gpu_layers",
    ("--main-gpu", "-mg"): "main_gpu",
    ("--predict", "--n-predict", "-n"): "n_predict",
    ("--cache-ram", "-cram"): "cache_ram_mib",
    ("--cache-reuse",): "n_cache_reuse",
    ("--ctx-checkpoints", "-ctxcp"): "n_ctx_checkpoints",
    ("--top-k",): "sampling.top_k",
    ("--verbosity", "-lv"): "verbosity",
    ("--port",): "port",
    ("--spec-ngram-simple-size-n",): "speculative.ngram_simple.size_n",
    ("--spec-ngram-simple-size-m",): "speculative.ngram_simple.size_m",
    ("--spec-ngram-simple-min-hits",): "speculative.ngram_simple.min_hits",
    ("--spec-ngram-map-k-size-n",): "speculative.ngram_map_k.size_n",
    ("--spec-ngram-map-k-size-m",): "speculative.ngram_map_k.size_m",
    ("--spec-ngram-map-k-min-hits",): "speculative.ngram_map_k.min_hits",
    ("--spec-ngram-mod-n-match",): "speculative.ngram_mod.n_match",
    ("--spec-ngram-mod-n-max",): "speculative.ngram_mod.n_max",
    ("--spec-ngram-mod-n-min",): "speculative.ngram_mod.n_min",
}
"""Flags of a whole number, and the parameter that each sets."""

FLOATS = {
    ("--temperature", "--temp"): "sampling.temp",
    ("--top-p",): "sampling.top_p",
    ("--min-p",): "sampling.min_p",
}

SWITCHES = {
    ("--cont-batching", "-cb"): ("cont_batching", True),
    ("--no-cont-batching", "-nocb"): ("cont_batching", False),
    ("--kv-unified", "-kvu"): ("kv_unified", True),
    ("--no-kv-unified", "-no-kvu"): ("kv_unified", False),
    ("--cache-prompt",): ("cache_prompt", True),
    ("--no-cache-prompt",): ("cache_prompt", False),
    ("--warmup",): ("warmup", True),
    ("--no-warmup",): ("warmup", False),
    ("--metrics",): ("endpoint_metrics", True),
    ("--slots",): ("endpoint_slots", True),
    ("--no-slots",): ("endpoint_slots", False),
    ("--ui", "--webui"): ("ui", True),
    ("--no-ui", "--no-webui"): ("ui", False),
    ("--swa-full",): ("swa_full", True),
    ("--repack",): ("no_extra_bufts", False),
    ("--no-repack",): ("no_extra_bufts", True),
}
"""Flags without a value, the parameter that each sets, and to what."""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SPECULATION = ("none", "ngram-simple", "ngram-map-k", "ngram-mod")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the reason as one line and end with 1, as `llama-server` does."""
        self.exit(1, f"error: {message}\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; a flag that is not given is absent from its result."""
    made = _Parser("tuner-llama-server", allow_abbrev=False, argument_default=argparse.SUPPRESS)
    made.add_argument("--version", action="store_true", help="print the version of llama.cpp and end")
    made.add_argument("--list-devices", action="store_true", help="print the devices that llama.cpp can use and end")
    made.add_argument("--model", "-m", metavar="FILE", help="the model, a GGUF file")
    made.add_argument("--alias", "-a", metavar="NAME", help="the model's name in requests")
    made.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    made.add_argument("--api-key", metavar="KEY", help="key that clients must send")
    made.add_argument("--flash-attn", "-fa", choices=("on", "off", "auto"))
    for name, dest in (("k", "cache_type_k"), ("v", "cache_type_v")):
        made.add_argument(f"--cache-type-{name}", f"-ct{name}", dest=dest, choices=CACHE_TYPES)
    made.add_argument("--spec-type", choices=SPECULATION)
    for names, place in INTEGERS.items():
        made.add_argument(*names, dest=place, type=int, metavar="N")
    for names, place in FLOATS.items():
        made.add_argument(*names, dest=place, type=float, metavar="X")
    for names, (place, value) in SWITCHES.items():
        made.add_argument(*names, dest=place, action="store_const", const=value)
    return made


def set_parameter(parameters: object, place: str, value: object) -> None:
    """Set a parameter by its dotted place, such as `cpuparams.n_threads`."""
    *parents, name = place.split(".")
    for parent in parents:
        parameters = getattr(parameters, parent)
    setattr(parameters, name, value)


def server_parameters(given: dict[str, Any]) -> xllamacpp.CommonParams:
    """Return the server's parameters for parsed flags.

    `xllamacpp` lacks defaults that `llama-server` computes: port 8080, and 4 slots with a unified KV cache unless
    `--parallel` is given.
    """
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    plain = {"n_parallel": 4, "kv_unified": "n_parallel" not in given, "port": 8080, **given}
    parameters.model.path = plain.pop("model")
    if "alias" in plain:
        parameters.model_alias = {plain.pop("alias")}
    if "host" in plain:
        parameters.hostnames = [plain.pop("host")]
    if "api_key" in plain:
        parameters.api_keys = [plain.pop("api_key")]
    if "flash_attn" in plain:
        kind = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[plain.pop("flash_attn")]
        parameters.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{kind}")
    for name in ("cache_type_k", "cache_type_v"):
        if name in plain:
            setattr(parameters, name, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{plain.pop(name).upper()}"))
    if "spec_type" in plain:
        kind = plain.pop("spec_type").upper().replace("-", "_")
        parameters.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
    for place, value in plain.items():
        set_parameter(parameters, place, value)
    return parameters


def print_devices() -> None:
    """Print the devices that the build can use beside the CPU, as `llama-server --list-devices` does."""
    import xllamacpp

    print("Available devices:")
    for device in xllamacpp.get_device_info():
        if device["type"] != xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU:
            total, free = (int(device[name]) // 2**20 for name in ("memory_total", "memory_free"))
            print(f"  {device['name']}: {device['description']} ({total} MiB, {free} MiB free)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = vars(parser().parse_args(arguments))
    try:
        import xllamacpp
    except ModuleNotFoundError:
        sys.exit("error: the package xllamacpp is not installed; `pip install xllamacpp`")
    except ImportError as error:
        sys.exit(f"error: the package xllamacpp lacks a library ({error}); on Debian, `apt-get install libgomp1`")
    if given.pop("version", False):
        print(f"version: {xllamacpp.__version__} (xllamacpp)")
        return
    if given.pop("list_devices", False):
        print_devices()
        return
    if "model" not in given:
        sys.exit("error: --model is required")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = xllamacpp.Server(server_parameters(given))
    except RuntimeError:
        sys.exit(1)  # the server has logged why
    print(f"listening on {server.listening_address}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
