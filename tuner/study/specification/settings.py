"""What follows from settings alone: the servers of a study, the GPUs of a trial, and what a run may spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from search_spaces.rendering.shape import INSTANCES, gpus_of, instances_of, nodes_of, tensor_parallel_size, wrong_size
from tuner.errors import SettingError
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
