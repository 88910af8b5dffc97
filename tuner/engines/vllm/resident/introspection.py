"""Read the flags of `vllm serve`, and let vLLM check a command line.

It runs in a child that `helper.py` forks in vLLM's interpreter; the tuner never imports it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import traceback
from typing import Any


def serve_parser() -> tuple[Any, Any, Any]:
    """Return the parser of `vllm`, its subparser of `serve`, and vLLM's object of that subcommand."""
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    utils = importlib.import_module("vllm.utils.argparse_utils")
    parser = utils.FlexibleArgumentParser(prog="vllm")
    subparsers = parser.add_subparsers(required=False, dest="subparser")
    command = next(command for command in serve.cmd_init() if command.name == "serve")
    return parser, command.subparser_init(subparsers), command


def info() -> dict[str, Any]:
    """Return every flag of `vllm serve`."""
    sys.argv = ["vllm", "serve"]  # vLLM reads it while it builds the parser
    flags = [
        {
            "names": list(action.option_strings),
            "choices": None if action.choices is None else [str(choice) for choice in action.choices],
            "type": getattr(action.type, "__name__", None),
            "nargs": action.nargs,
        }
        for action in serve_parser()[1]._actions
    ]
    return {"flags": flags}


def inspect_models_here() -> None:
    """Make vLLM inspect a model's class in this process, which ends with the check.

    vLLM starts another Python for that, to keep CUDA out of a server's process. The other Python imports vLLM: 20 to
    30 s on slow cores, once for each class and each folder of caches.
    """
    with contextlib.suppress(ImportError):
        registry: Any = importlib.import_module("vllm.model_executor.models.registry")
        registry._run_in_subprocess = lambda inspect: inspect()


def check(argv: list[str]) -> dict[str, Any]:
    """Parse the arguments of `vllm`, the first one `serve`, and build the engine's configuration, without an engine.

    Returns:
        `ok`: whether vLLM accepts them; `stage`: `parse` if the parser ended, else `config`; `type` and `text`: class
        and message of vLLM's error.
    """
    sys.argv = ["vllm", *argv]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parser, _, command = serve_parser()
            arguments = parser.parse_args(argv)
        command.validate(arguments)
        if getattr(arguments, "model_tag", None) is not None:
            arguments.model = arguments.model_tag
        inspect_models_here()
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
