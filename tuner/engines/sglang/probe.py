"""Answer `tuner/engines/server/probe.py` for SGLang. SGLang's Python runs it."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

DISTRIBUTION = "sglang"

PACKAGES = ("deep_gemm", "flashinfer", "sgl_kernel", "torchao", "xgrammar")
"""Optional packages that some flags need; the distributions sgl-kernel and sglang-kernel install `sgl_kernel`."""


def flags() -> list[dict[str, Any]]:
    """Return every flag of SGLang's own parser. The import takes 15 s or more."""
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return [
        {
            "names": list(action.option_strings),
            "choices": None if action.choices is None else [str(choice) for choice in action.choices],
            "type": getattr(action.type, "__name__", None),
            "nargs": action.nargs,
        }
        for action in parser._actions
    ]
