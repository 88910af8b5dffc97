"""Read vLLM's flags and check a configuration. Runs in a fork of the helper; the tuner never imports it."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import traceback
from typing import Any


def serve_parser() -> tuple[Any, Any, Any]:
    """Return vLLM's parser as `vllm serve` builds it, the parser of `serve` within it, and the command object."""
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    utils = importlib.import_module("vllm.utils.argparse_utils")
    parser = utils.FlexibleArgumentParser(prog="vllm")
    subparsers = parser.add_subparsers(required=False, dest="subparser")
    command = next(command for command in serve.cmd_init() if command.name == "serve")
    return parser, command.subparser_init(subparsers), command


def info() -> dict[str, Any]:
    """Return every flag of `vllm serve`, and the platform."""
    sys.argv = ["vllm", "serve"]
    flags = [
        {
            "names": list(action.option_strings),
            "choices": None if action.choices is None else [str(choice) for choice in action.choices],
            "type": getattr(action.type, "__name__", None),
            "nargs": action.nargs,
        }
        for action in serve_parser()[1]._actions
    ]
    platform = importlib.import_module("vllm.platforms").current_platform
    return {"flags": flags, "platform": getattr(platform, "device_type", None)}


def check(argv: list[str]) -> dict[str, Any]:
    """Parse the arguments of `vllm`, from `serve` on, and build the engine's configuration; return vLLM's verdict."""
    sys.argv = ["vllm", *argv]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parser, _, command = serve_parser()
            arguments = parser.parse_args(argv)
        command.validate(arguments)
        if getattr(arguments, "model_tag", None) is not None:
            arguments.model = arguments.model_tag
        engine = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(arguments)
        usage = importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
        engine.create_engine_config(usage)
    except SystemExit as error:
        sys.stderr.write(printed.getvalue())
        return {"ok": error.code in (0, None), "stage": "parse", "type": "ArgumentError", "text": printed.getvalue()}
    except Exception as error:  # noqa: BLE001  vLLM may raise any exception; the answer contains it
        traceback.print_exc()
        return {"ok": False, "stage": "config", "type": type(error).__name__, "text": str(error)}
    return {"ok": True, "stage": "config", "type": None, "text": ""}
