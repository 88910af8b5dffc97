"""Replace the secrets in a server's settings by references to environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tuner.errors import SettingError
from tuner.processes.secrets import REFERENCE, Secrets, is_secret_flag, is_secret_variable, url_passwords
from tuner.study.specification.settings import ServerSettings

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
