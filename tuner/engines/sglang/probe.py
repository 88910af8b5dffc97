"""Print as JSON SGLang's version, the packages beside it and, with `--flags`, its flags. SGLang's Python runs it."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import sys
from typing import Any

PACKAGES = ("deep_gemm", "flashinfer", "sgl_kernel", "torchao", "xgrammar")
"""Packages that flags need; `sgl_kernel` is that of the distributions sgl-kernel and sglang-kernel."""


def version() -> str | None:
    """Return the version of SGLang; None if this Python has none."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def flags() -> list[dict[str, Any]]:
    """Return every flag of SGLang's own parser. The import takes 15 s and more."""
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


def main() -> None:
    found: dict[str, Any] = {"version": version()}
    found["packages"] = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    if "--flags" in sys.argv[1:]:
        found["flags"] = flags()
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
