"""What follows from settings alone: servers, GPUs, what a run may change, and secrets as references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from search_spaces.render import INSTANCES, gpus_of, instances_of, nodes_of, tensor_parallel_size, wrong_size
from tuner.errors import SettingError
from tuner.processes.secrets import REFERENCE, Secrets, is_secret_flag, is_secret_variable, url_passwords
from tuner.settings.declared import seconds_of
from tuner.settings.study import AskedSettings, StudySettings


@dataclass(frozen=True)
class ServerSettings:
    """Flags and environment variables of every server.

    `${NAME}` in a flag or a value refers to a variable of the command's environment. `secrets` names variables and
    flags that are secrets, beside those whose names say so. `command` has the words of the user's own command, for the
    engine `openai`; it runs in `folder`.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    folder: str | None = None

    @classmethod
    def of(cls, settings: AskedSettings) -> ServerSettings:
        """Return the servers of a study without a command."""
        return cls(tuple(settings.server_arguments), settings.env, tuple(settings.secret))


@dataclass(frozen=True)
class Budget:
    """What a run of a study may spend.

    `trials` counts every trial of the study, the defaults and trials of earlier runs included. `timeout_s` is the
    wall-clock time of this run in seconds, the confirmation included. `attempts` bounds the launches of a trial
    that fails for reasons of infrastructure. The search ends once the maximum expected improvement stays below
    `min_gain`, a share of the score. `ablate` adds one trial for each flag of the best configuration.
    """

    trials: int
    timeout_s: float | None = None
    attempts: int = 3
    min_gain: float = 0.0
    ablate: bool = False

    @classmethod
    def of(cls, settings: AskedSettings) -> Budget:
        """Return the budget of a run.

        Raises:
            SettingError: for less than one trial, or a time limit that is no duration.
        """
        if settings.trials < 1:
            raise SettingError("trials", settings.trials, "at least 1 is needed", "the defaults are the first trial")
        timeout = None if settings.timeout is None else seconds_of("timeout", settings.timeout)
        return cls(settings.trials, timeout, min_gain=settings.min_gain / 100, ablate=settings.ablate)


def gpus_of_trial(settings: AskedSettings) -> int:
    """Return the GPUs of a trial; at least one on each node."""
    if settings.gpus_per_trial is not None:
        return settings.gpus_per_trial
    return max(gpus_of(settings.server_arguments), settings.nodes_per_trial)


def needed_flags(settings: AskedSettings) -> tuple[str, ...]:
    """Return the flags that the installed engine must have."""
    return (*settings.server_arguments, *(() if settings.nodes_per_trial == 1 else ("--nnodes",)))


def check_nodes(settings: StudySettings) -> None:
    """Refuse GPUs that cannot be spread over the nodes of a trial, and servers that start on one machine.

    Raises:
        SettingError: with the value.
    """
    nodes, gpus, arguments = settings.nodes_per_trial, gpus_of_trial(settings), settings.server_arguments
    if nodes < 1:
        raise SettingError("nodes_per_trial", nodes, "at least 1 is needed")
    if gpus % nodes:
        rule = f"each node of a trial has as many GPUs, and {nodes} nodes do not divide them"
        raise SettingError("gpus_per_trial", gpus, rule, f"give a multiple of {nodes}")
    if nodes == 1:
        return
    if instances_of(arguments) > 1:
        rule = f"instances start on one machine, and a trial has {nodes} nodes"
        raise SettingError("server_arguments", INSTANCES, rule, "leave it out, or leave out {nodes_per_trial}")
    needed, used = gpus_of(arguments), nodes_of(arguments, gpus // nodes, nodes)
    if needed % used:
        rule = f"the server's own flags need {needed} GPUs, which {used} nodes cannot share evenly"
        raise SettingError("nodes_per_trial", nodes, rule, "give a divisor, or change the flags")


def check_gpus(settings: StudySettings, heads: int | None) -> None:
    """Refuse servers that do not fit into the GPUs of a trial, and tensor parallelism that vLLM refuses.

    Args:
        settings: of the study.
        heads: attention heads of the model; None: unknown.

    Raises:
        SettingError: for less than one GPU, flags that need more than a trial has, or heads that cannot be divided.
    """
    given, arguments = settings.gpus_per_trial, settings.server_arguments
    if given is not None and given < 1:
        raise SettingError("gpus_per_trial", given, "at least 1 is needed")
    wrong = wrong_size(arguments)
    if wrong is not None:
        raise SettingError(
            "server_arguments", wrong, "a whole number of at least 1 is needed", "give one after the flag"
        )
    needed, size = gpus_of(arguments), tensor_parallel_size(arguments)
    if given is not None and needed > given:
        rule = f"the server's own flags need {needed} GPUs"
        raise SettingError("gpus_per_trial", given, rule, f"give {needed}, or leave it out")
    check_nodes(settings)
    if heads is not None and heads % size:
        rule = f"the model has {heads} attention heads, which {size} does not divide"
        raise SettingError("server_arguments", f"--tensor-parallel-size {size}", rule, "choose a divisor")


VARIABLES_OF_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
"""Flags of vLLM whose value it also reads from a variable, which other users of the machine cannot see."""


def refer_to_secrets(
    server: ServerSettings, environment: Mapping[str, str], *, move: bool = True
) -> tuple[ServerSettings, Secrets]:
    """Return the settings with references for secrets, and the values of everything that they refer to.

    A variable of a server that is a secret becomes a reference to a variable of the same name. A flag of
    `VARIABLES_OF_FLAGS` becomes the variable.

    Args:
        server: the settings as given.
        environment: the variables of this process, which references name.

    Raises:
        SettingError: for a secret flag with a literal value, and for a reference to a variable that is not set.
    """
    values: dict[str, str] = {}
    variables: dict[str, str] = {}
    for name, value in server.environment.items():
        secret = is_secret_variable(name) or name in server.secrets or bool(url_passwords(value))
        if secret and not REFERENCE.search(value):
            values[name], variables[name] = value, f"${{{name}}}"
        else:
            variables[name] = value
            _look_up(value, "env", environment, values)
    arguments, command = _checked(server.arguments, server.secrets), _checked(server.command, server.secrets)
    if move and not command:
        arguments = _move_to_variables(arguments, variables)
    for argument in (*arguments, *variables.values()):
        _look_up(argument, "server_arguments", environment, values)
    for word in command:
        _look_up(word, "server_command", environment, values)
    return replace(server, arguments=arguments, environment=variables, command=command), Secrets(values)


def _checked(arguments: tuple[str, ...], secrets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments, a secret flag and its value as two words.

    Raises:
        SettingError: for a secret flag with a literal value, and for a URL with a password.
    """
    words: list[str] = []
    secret_flag: str | None = None
    for word in arguments:
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            secret = is_secret_flag(flag) or flag.lstrip("-") in {name.lstrip("-") for name in secrets}
            secret_flag = flag if secret else None
            if secret and equals:
                _check_value(flag, value)
                words += [flag, value]
                continue
        elif secret_flag is not None:
            _check_value(secret_flag, word)
        if url_passwords(word):
            raise _literal(flag if word.startswith("-") else "a URL with a password")
        words.append(word)
    return tuple(words)


def _check_value(flag: str, value: str) -> None:
    if not REFERENCE.fullmatch(value):
        raise _literal(flag)


def _literal(what: str) -> SettingError:
    rule = "a secret is not given literally: it would have to be stored"
    return SettingError("server_arguments", what, rule, "refer to an environment variable, such as '${VLLM_API_KEY}'")


def _move_to_variables(arguments: tuple[str, ...], variables: dict[str, str]) -> tuple[str, ...]:
    """Return the arguments without the flags of `VARIABLES_OF_FLAGS`, whose values become variables."""
    left: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        variable = VARIABLES_OF_FLAGS.get(word.replace("_", "-"))
        if variable is None or not words or not REFERENCE.fullmatch(words[0]):
            left.append(word)
            continue
        variables[variable] = words.pop(0)
        if words and REFERENCE.fullmatch(words[0]):
            raise SettingError("server_arguments", word, "only one value is possible", "leave the others out")
    return tuple(left)


def _look_up(text: str, field: str, environment: Mapping[str, str], values: dict[str, str]) -> None:
    """Add the variables that a text refers to.

    Raises:
        SettingError: if one is not set.
    """
    for name in REFERENCE.findall(text):
        if name in values:
            continue
        if name not in environment:
            rule = f"the environment has no variable {name}"
            raise SettingError(field, f"${{{name}}}", rule, f"set it: export {name}=…")
        values[name] = environment[name]
