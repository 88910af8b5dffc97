"""What engines expect on the command line of a server: the flags that the tuner sets, and those that a user may not."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from search_spaces import ENGINE
from search_spaces.rendering.shape import instances_of, without_instances
from search_spaces.rendering.words import long_name, one_spelling
from search_spaces.schema import VLLM
from storage.records import Provenance
from tuner.engines.base import EngineInfo
from tuner.engines.openai import command as user_command
from tuner.engines.tensorrt_llm.options import FILE_FLAGS, METRICS_OPTIONS, check_options
from tuner.errors import SettingError

LLAMA_CPP = "llama.cpp"
OPENAI = "openai"
"""Any command that serves an OpenAI-compatible API; see `tuner.engines.openai`."""

SGLANG = "sglang"

TENSORRT_LLM = "tensorrt-llm"

OTHER_ENGINES = (LLAMA_CPP, OPENAI, SGLANG, TENSORRT_LLM)
"""Engines beside vLLM and its simulation: the load generator sends all their workloads, nothing predicts them, and the
quality of their answers is not measured."""

SPACE_ENGINES = (LLAMA_CPP, SGLANG, TENSORRT_LLM)
"""Engines beside vLLM with a search space of their own, which has the engine's name."""

MEASURED_ENGINES = (VLLM, LLAMA_CPP, SGLANG)
"""Engines that a study can have several of."""

LAUNCHER = "tuner-llama-server"
"""The console script that starts the server of the package `xllamacpp`; see `tuner.engines.llama_cpp.launcher`."""

INSTANCES_LAUNCHER = "tuner-vllm-instances"
"""The console script that starts several vLLM servers; see `tuner.engines.vllm.instances.launcher`."""

VLLM_VARIABLE = "TUNER_VLLM"
"""The variable that names the vllm executable to it, and to `tuner`."""


DEFAULT_PORT = 8000


@dataclass(frozen=True)
class Program:
    """The program that a deployment starts.

    Attributes:
        kind: name of the engine, in a study.
        engine: name of the engine, in texts.
        name: of the executable.
        subcommand: words that come first.
        variable: environment variable with another executable.
        key_variable: environment variable with the API key, which vLLM and llama.cpp read themselves.
        model_flag: the flag of the model; None: the model is the first argument.
        name_flag: the flag of the model's name in requests.
        recorded_first: whether the file that the study ran comes before the one on the PATH, such as for a Python.
        command: the words of the user's command with placeholders, for the engine `openai`; the first is the program.
        options: whether words `--config.KEY VALUE` are options that the program reads from a file; see
            `tuner.engines.tensorrt_llm.options`.
    """

    kind: str
    engine: str
    name: str
    subcommand: tuple[str, ...]
    variable: str
    key_variable: str
    model_flag: str | None
    name_flag: str
    command: tuple[str, ...] = ()
    recorded_first: bool = False
    options: bool = False

    def words(self, model: str, served_name: str, flags: Sequence[str]) -> tuple[str, ...]:
        """Return the arguments of the program: the model, its name in requests, and flags.

        vLLM's name in requests is the model, unless another is given; llama.cpp's is the name of the file. A user's
        command keeps the placeholders of host and port.
        """
        if self.command:
            return user_command.filled(self.command[1:], flags, {user_command.MODEL: model})
        placed = (model,) if self.model_flag is None else (self.model_flag, model)
        default = model if self.model_flag is None else None
        named = () if served_name == default else (self.name_flag, served_name)
        return (*self.subcommand, *placed, *named, *flags)

    def listening(self, words: Sequence[str], host: str, port: int) -> tuple[str, ...]:
        """Return the arguments of `words` with the address on which the server listens."""
        if self.command:
            return user_command.filled(words, (), {user_command.HOST: host, user_command.PORT: str(port)})
        return (*words, "--host", host, "--port", str(port))

    def on_default_port(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the arguments of `words` for the engine's default port; a user's command has none, and gets 8000."""
        return self.listening(words, "127.0.0.1", DEFAULT_PORT) if self.command else tuple(words)

    @property
    def words_after_flags(self) -> int:
        """How many words follow the flags in a user's command."""
        return user_command.words_after_flags(self.command)

    def flags_of(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the flags of a trial's server by its command line; only for a user's command."""
        return user_command.flags_in(self.command[1:], argv[1:])


PROGRAMS = {
    VLLM: Program(VLLM, "vLLM", "vllm", ("serve",), "VLLM", "VLLM_API_KEY", None, "--served-model-name"),
    LLAMA_CPP: Program(
        *(LLAMA_CPP, LLAMA_CPP, "llama-server", (), "LLAMA_SERVER", "LLAMA_API_KEY", "--model", "--alias")
    ),
    SGLANG: Program(
        *(SGLANG, "SGLang", "python3", ("-m", "sglang.launch_server"), "SGLANG_PYTHON", "TUNER_API_KEY"),
        *("--model-path", "--served-model-name"),
        recorded_first=True,
    ),
    TENSORRT_LLM: Program(
        *(TENSORRT_LLM, "TensorRT-LLM", "trtllm-serve", ("serve",), "TRTLLM_SERVE", "TUNER_API_KEY"),
        *(None, "--served_model_name"),
        options=True,
    ),
}
"""The program of each engine; a simulated one is vLLM's."""


INSTANCES = replace(PROGRAMS[VLLM], name=INSTANCES_LAUNCHER)
"""The program of several vLLM servers."""

LLAMA_LAUNCHER = replace(PROGRAMS[LLAMA_CPP], name=LAUNCHER)
"""The program of the server of the package `xllamacpp`."""


def engine_of(premise: Mapping[str, Any]) -> str:
    """Return the name of a stored study's engine."""
    return str(premise.get("engine", {}).get("name", VLLM))


def premise_of_trial(premise: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored study's premise as that of a study of one trial's engine alone.

    The name in requests is that of the default engine's model.

    Args:
        premise: of the study.
        config: of the trial.
    """
    parts = premise.get("engines")
    if not parts:
        return premise
    engine = str(config.get(ENGINE) or engine_of(premise))
    part = parts[engine]
    model = {**premise["model"], "tokenizer": part["model"]["tokenizer"]}
    server = {**premise["server"], "arguments": part["arguments"]}
    return {**premise, "engine": {"name": engine, "version": part["version"]}, "model": model, "server": server}


def program_of(engine: str, command: Sequence[str] = (), argv: Sequence[str] = ()) -> Program:
    """Return the program of an engine by its name in a study.

    Args:
        engine: the name; that of a simulated engine is vLLM's.
        command: the user's command, for the engine `openai`.
        argv: command of a trial's server, which a launcher of the tuner may have started; empty: the engine's own.
    """
    if command:
        name = Path(command[0]).name
        return Program(OPENAI, name, name, (), "SERVER_PROGRAM", "TUNER_API_KEY", None, "", tuple(command))
    program = PROGRAMS.get(engine, PROGRAMS[VLLM])
    if program.kind == VLLM and instances_of(argv) > 1:
        return INSTANCES
    return LLAMA_LAUNCHER if argv and Path(argv[0]).name == LAUNCHER else program


def command_of(premise: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the user's command of a stored study; empty for an engine that has its own."""
    return tuple(premise.get("server", {}).get("command", ()))


RESERVED_FLAGS = {
    VLLM: ("--host", "--port", "--served-model-name", "--model", "--uds"),
    LLAMA_CPP: ("--host", "--port", "--alias", "-a", "--model", "-m", "--metrics"),
    OPENAI: (),
    SGLANG: ("--host", "--port", "--served-model-name", "--model-path", "--model", "--enable-metrics"),
    TENSORRT_LLM: (
        *("--host", "--port", "--backend", "--served_model_name", *METRICS_OPTIONS, *FILE_FLAGS),
        *("--tensor_parallel_size", "--tp_size", "--pipeline_parallel_size", "--pp_size", "--grpc"),
    ),
}
"""Flags of each engine's server that the tuner sets itself."""

_SHORT = re.compile(r"-[A-Za-z]")

_HIDDEN = ("a study would not know the flags in the file", "give them here")
_ONE_NODE = ("a server of SGLang has one node, and the tuner chooses its GPUs", "leave it out")
_NODES = ("the tuner sets this flag", "give {nodes_per_trial}")

_REFUSED_FLAGS = {
    VLLM: {"--config": _HIDDEN, **dict.fromkeys(("--nnodes", "--node-rank", "--master-addr", "--master-port"), _NODES)},
    SGLANG: {
        "--config": _HIDDEN,
        **dict.fromkeys(("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"), _ONE_NODE),
        **dict.fromkeys(("--base-gpu-id", "--gpu-id-step"), _ONE_NODE),
    },
}
"""Further flags that a user may not set, with the rule and the remedy."""

_HELP = {
    VLLM: "`vllm serve --help=all`",
    LLAMA_CPP: "`llama-server --help`",
    SGLANG: "`python -m sglang.launch_server --help`",
    TENSORRT_LLM: "`trtllm-serve serve --help`",
}

_RESERVED_REMEDIES = {
    **dict.fromkeys(
        ("--tensor_parallel_size", "--tp_size", "--pipeline_parallel_size", "--pp_size"),
        "leave it out: a trial of TensorRT-LLM has one GPU",
    ),
    **dict.fromkeys(FILE_FLAGS, "give each option as --config.KEY VALUE, such as --config.kv_cache_config.dtype fp8"),
}
"""How else a user says what a reserved flag would say."""


def check_server_arguments(arguments: Sequence[str], engine: str) -> None:
    """Refuse arguments that no server can get, as far as that is known without the installed engine.

    Raises:
        SettingError: for text before the first flag, a flag that the tuner sets, and an option that no file can hold.
    """
    if arguments and not arguments[0].startswith("-"):
        raise SettingError("server_arguments", arguments[0], "the first argument of a server is a flag")
    reserved = {long_name(flag): flag for flag in RESERVED_FLAGS[engine]}
    refused = _REFUSED_FLAGS.get(engine, {})
    for argument in arguments:
        flag = argument.split("=")[0]
        name = long_name(flag)
        if name in reserved:
            remedy = _RESERVED_REMEDIES.get(reserved[name], "leave it out")
            raise SettingError("server_arguments", flag, "the tuner sets this flag", remedy)
        if name in refused:
            raise SettingError("server_arguments", flag, *refused[name])
    if engine == TENSORRT_LLM:
        check_options(arguments)


def check_known_flags(arguments: Sequence[str], engine: EngineInfo) -> None:
    """Refuse a server's flag that the installed engine lacks; if its flags are unknown, the first trial fails on it.

    Raises:
        SettingError: with the flag.
    """
    if engine.flags is None:
        return
    has_short = any(not name.startswith("--") for name in engine.flags)
    for before, argument in pairwise(("", *arguments)):
        name = argument.split("=")[0]
        is_flag = name.startswith("--") or (has_short and _SHORT.match(name) is not None)
        if not is_flag or before.endswith("+") or _is_known(name, engine.flags):  # `+` adds values such as -rms_norm
            continue
        near = difflib.get_close_matches(long_name(name), sorted(engine.flags), n=1)
        hint = f"did you mean {near[0]}?" if near else f"see {_HELP.get(engine.name, _HELP[VLLM])}"
        simulated = engine.provenance is Provenance.SIMULATED
        rule = "this flag is not simulated" if simulated else f"{engine.name} {engine.version} has no such flag"
        hint = hint if near or not simulated else "measure it with {engine} vllm"
        raise SettingError("server_arguments", name, rule, hint)


def check_values(arguments: Sequence[str], engine: EngineInfo) -> None:
    """Refuse arguments that the engine's own parser would refuse in every trial, as far as it is known.

    Raises:
        SettingError: with the flag and the rule.
    """
    refused = None if engine.parser is None else engine.parser.problem(without_instances(arguments))
    if refused is not None:
        raise SettingError("server_arguments", None, refused, "correct it after `--`")


def _is_known(name: str, flags: Collection[str]) -> bool:
    """Return whether an engine has a flag, by one of its names, or its keys if the name has dots."""
    flag = name.split(".")[0]
    dashed = "--" + flag.removeprefix("--").replace("_", "-")
    level = one_spelling([name])[0]  # -O3 is vLLM's --optimization-level
    return flag in flags or (flag.startswith("--") and dashed in flags) or level.split(".")[0] in flags


def sampling_arguments(temperature: float | None, engine: str) -> tuple[str, ...]:
    """Return the server's arguments that set the sampling temperature; none for the server's default.

    Raises:
        SettingError: for a user's command, whose flag is not known, and for an engine that has none.
    """
    if temperature is None:
        return ()
    if engine == OPENAI:
        rule = "the flag of the temperature is not known for a command"
        raise SettingError("temperature", temperature, rule, "leave it out here and in the workload, and set it there")
    if engine == SGLANG:
        rule = "SGLang has no flag for it"
        raise SettingError("temperature", temperature, rule, "set it in the model's generation_config.json")
    if engine == TENSORRT_LLM:
        rule = "TensorRT-LLM has no flag for it"
        raise SettingError("temperature", temperature, rule, "leave it out here and in the workload")
    if engine == LLAMA_CPP:
        return ("--temp", f"{temperature:g}")
    return ("--override-generation-config", json.dumps({"temperature": temperature}))
