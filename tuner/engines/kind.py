"""`EngineKind`: every fact of an engine that the tuner needs without an installation of that engine.

Each engine's package defines its kind in `kind.py`, and `tuner.engines.kinds` finds the kinds by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from tuner.engines import user_command
from tuner.engines.base import Engine, EngineSettings

DEFAULT_PORT = 8000

FILE_HIDES = ("a study would not know the flags in the file", "give them here")
"""Rule and remedy for an argument that names a file of flags."""


class Feature(Enum):
    """What the tuner can do with an engine beside measuring it."""

    PREDICTED = "the simulator predicts it"
    OWN_CLIENT = "its own benchmark client sends closed loops, which the load generator sends to other engines"
    QUALITY = "its answers are compared with those of the unquantized model"
    SCHEMA = "structured output"
    ADAPTERS = "LoRA adapters"
    SESSIONS = "sessions: an answer can be part of the next prompt, as text or as the token ids that the server sends"
    SEVERAL_GPUS = "a trial can have several GPUs"
    BESIDE_OTHERS = "a study can have it beside other engines"


class ModelForm(StrEnum):
    """What an engine loads a model from."""

    CHECKPOINT = "a folder or a hub name"
    GGUF = "a GGUF file"
    ANY = "a name that only the command understands"


@dataclass(frozen=True)
class Program:
    """The program that a deployment starts.

    Attributes:
        engine: `EngineKind.name`, the engine in a study.
        title: `EngineKind.title`, or the name of the user's program; in texts.
        name: of the executable.
        subcommand: the first arguments.
        variable: environment variable that names another executable.
        key_variable: environment variable with the API key, which vLLM and llama.cpp read themselves.
        model_flag: the flag of the model; None: the model is the first argument.
        name_flag: the flag of the model's name in requests.
        recorded_first: whether a script prefers the executable that the study ran to the one on the PATH: the PATH has
            some `python3`, which rarely has the engine.
        command: the words of the user's command with placeholders, for the engine `openai`; the first is the program.
        options: whether words `--config.KEY VALUE` are options that the program reads from a file; see
            `tuner.engines.tensorrt_llm.options`.
        version: the shell function `installed_version` of a script, which prints the version of what is installed.
    """

    engine: str
    title: str
    name: str
    subcommand: tuple[str, ...]
    variable: str
    key_variable: str
    model_flag: str | None
    name_flag: str
    command: tuple[str, ...] = ()
    recorded_first: bool = False
    options: bool = False
    version: str = ""

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


@dataclass(frozen=True)
class Found:
    """An installed engine: its program, and whether it runs on the GPUs of this machine, if there are any."""

    executable: Path
    gpus: bool = True


@dataclass(frozen=True)
class EngineKind:
    """Everything that is known of an engine without its installation.

    Attributes:
        name: in a study and on the command line.
        title: in texts.
        build: returns the engine of a worker; what a killed tuner left running has been ended before.
        find: returns the installation that a setting names, or the one of this machine for None.
        facts: yields further facts of an installation for `tuner doctor`, with a folder for caches: its `version`, the
            `gpus` that it can use, and the `unmet` requirements of its package.
        setting: the field of `EngineChoice` that names the program; None: it is found on the PATH only.
        program: what an exported script starts; None for a user's command.
        variant: returns the program that started a server by its command line; None: `program`.
        features: what the tuner can do with it.
        model_form: what it loads a model from.
        space: its own search space; None for vLLM, whose space the preset names, and for a user's command.
        reserved: flags of the server that the tuner sets, and how else a user says what they would say.
        refused: further flags that a user may not set, with the rule and the remedy.
        help: the command that prints the flags of the server.
        context_flag: the flag of the context length, the most tokens of a request, as `one_spelling` writes it.
        sampling: returns the flags that set the sampling temperature.
        no_sampling: the rule and the remedy for a user who sets the temperature, where no flag does.
        moves_secrets: whether the server reads its API key from a variable, so that a command line need not show it.
        check_arguments: raises a `SettingError` for further arguments that no server can get.
        variables: prefixes of environment variables that set the server; it does not inherit them.
    """

    name: str
    title: str
    build: Callable[[EngineSettings], Engine]
    find: Callable[[str | None], Found]
    facts: Callable[[Found, Path], Iterable[tuple[str, Any]]] = lambda found, home: ()
    setting: str | None = None
    program: Program | None = None
    variant: Callable[[Sequence[str]], Program | None] = lambda argv: None
    features: frozenset[Feature] = frozenset()
    model_form: ModelForm = ModelForm.CHECKPOINT
    space: str | None = None
    reserved: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    help: str = "its help"
    context_flag: str | None = None
    sampling: Callable[[float], tuple[str, ...]] | None = None
    no_sampling: tuple[str, str] = ("this engine has no flag for it", "leave it out here and in the workload")
    moves_secrets: bool = True
    check_arguments: Callable[[Sequence[str]], None] = lambda arguments: None
    variables: tuple[str, ...] = ()

    def can(self, feature: Feature) -> bool:
        """Return whether the engine has a feature."""
        return feature in self.features


def at_first_use(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module that is imported with the call: an engine's code loads with its first use."""

    def call(*given: Any) -> Any:
        return getattr(import_module(module), name)(*given)

    return call


def reserved(*flags: str, remedy: str = "leave it out") -> dict[str, str]:
    """Return flags that the tuner sets, with the remedy for a user who gives one."""
    return dict.fromkeys(flags, remedy)
