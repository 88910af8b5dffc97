"""An engine whose server is one program with arguments: how it is found, started and recorded."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tuner.clock import Clock, RealClock
from tuner.engines.base import EngineSettings
from tuner.engines.server.devices import WorkerDevice, base_environment, visible_gpus, wait_for_gpus
from tuner.engines.server.running_server import HOST, RunningServer
from tuner.engines.user_command import api_key_in
from tuner.errors import SettingError, UserError
from tuner.processes.ports import PortLease, lease_port, refuse_taken_port
from tuner.processes.readiness import StartedProcess
from tuner.processes.records import ProcessRecords
from tuner.processes.secrets import shell_word
from tuner.processes.supervisor import ServerProcess, start_server
from tuner.specs import LaunchSpec, Limits, TrialSpec

StartedServer = TypeVar("StartedServer", bound=RunningServer)


@dataclass(frozen=True)
class ServerStart:
    """How a server starts: the command with the values of secrets, and where its log and its record go."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    folder: Path
    records: ProcessRecords
    port: int
    label: str

    def __call__(self) -> ServerProcess:
        """Start it as a command."""
        return start_server(self.words, self.environment, self.log, self.folder, self.records, self.port, self.label)


class ProgramEngine(ABC, Generic[StartedServer]):
    """The part of `Engine` that starts and stops servers.

    Args:
        settings: of the worker.
        devices: the worker's GPUs; empty on a CPU.
    """

    key_variable: str | None = None
    """The variable with the key that clients must send, unless the command has it; None: the server reads none."""

    dropped_prefixes: tuple[str, ...] = ()
    """Inherited variables with these prefixes are dropped, because they would set flags of the server."""

    def __init__(self, settings: EngineSettings, devices: tuple[WorkerDevice, ...]) -> None:
        self.clock: Clock = RealClock()
        self._home = settings.home
        self._secrets = settings.secrets
        self._devices = devices
        self._inherited = {
            name: value
            for name, value in base_environment(os.environ).items()
            if not name.startswith(self.dropped_prefixes)
        }
        self._records = ProcessRecords(settings.home / "processes", settings.driver, settings.secrets.redact)
        self._servers: list[StartedServer] = []

    @abstractmethod
    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        """Return the program and its arguments; references to secrets are expanded later."""

    def _started(self, argv: tuple[str, ...], artifacts: Path) -> tuple[str, ...]:
        """Return the words that start the server, and write the files that they name to `artifacts`.

        The trial's record has the words of `_command` instead, from which another server can be started.
        """
        return argv

    def _process(self, spec: TrialSpec, start: ServerStart) -> StartedProcess:
        """Start the server, as a command unless the engine knows another way."""
        return start()

    @abstractmethod
    def _server(self, spec: TrialSpec, **started: Any) -> StartedServer:
        """Return the server that was started; `started` are the arguments of `RunningServer`."""

    def launch(self, spec: TrialSpec, limits: Limits) -> StartedServer:
        """Start the server of the trial; see `Engine`.

        Raises:
            TrialFailed: `GPU_BUSY` if the GPU is not free, `PORT_TAKEN` if no port is, `DISK_FULL`.
        """
        wait_for_gpus(self._used(spec.launch))
        lease = lease_port(self._home / "ports")
        try:
            return self._start(spec, limits, lease)
        except BaseException:
            lease.release()
            raise

    def _start(self, spec: TrialSpec, limits: Limits, lease: PortLease) -> StartedServer:
        own = {**self._own_environment(spec.launch), **spec.launch.environment}
        argv = self._command(spec.launch, lease.port)
        artifacts = spec.artifacts.absolute()
        artifacts.mkdir(parents=True, exist_ok=True)
        started = self._started(argv, artifacts)
        (artifacts / "command.txt").write_text(command_text(started, own, self._secrets.values), encoding="utf-8")
        refuse_taken_port(HOST, lease.port)
        words = self._secrets.expand_all(started)
        environment = {**self._inherited, **self._expanded(own)}
        folder = artifacts if spec.launch.folder is None else Path(spec.launch.folder)
        label = f"{spec.study} trial {spec.uid}"
        start = ServerStart(words, environment, artifacts / "server.log", folder, self._records, lease.port, label)
        server = self._server(
            spec,
            process=self._process(spec, start),
            lease=lease,
            argv=argv,
            environment=own,
            model=spec.launch.model,
            limits=limits,
            artifacts=artifacts,
            secrets=self._secrets,
            api_key=self._api_key(words, environment),
            devices=self._used(spec.launch),
        )
        self._servers = [each for each in self._servers if not each.stopped]
        self._servers.append(server)
        return server

    def _api_key(self, words: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
        """Return the key that clients must send; None: none."""
        return api_key_in(words) or (environment.get(self.key_variable) if self.key_variable is not None else None)

    def _used(self, launch: LaunchSpec) -> tuple[WorkerDevice, ...]:
        """Return the worker's GPUs that a server uses; another server may run on the rest."""
        return self._devices[: launch.gpus(len(self._devices))]

    def _own_environment(self, launch: LaunchSpec) -> dict[str, str]:
        """Return the variables that the tuner sets for a server: those that select the worker's GPUs."""
        return visible_gpus([device.index for device in self._devices])

    def _expanded(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: self._secrets.expand(value) for name, value in variables.items()}

    def close(self) -> None:
        """See `Engine`."""
        for server in self._servers:
            server.stop()


def command_text(argv: Sequence[str], environment: Mapping[str, str], references: Collection[str] = ()) -> str:
    """Return a server's exact command as one line of shell, with the variables that the tuner sets for it.

    The shell expands the references to the variables `references`.
    """
    assignments = [f"{name}={shell_word(value, references)}" for name, value in sorted(environment.items())]
    return " ".join(["env", *assignments, *(shell_word(word, references) for word in argv)]) + "\n"


_HEAD_BYTES = 4096
_PYTHON = re.compile(r"^(python|pypy)")
_TRAMPOLINE = re.compile(r"^'''exec' (.+) \"\$0\" \"\$@\"$")
_OF_CONSOLE_SCRIPTS = re.compile(
    r"#|'''exec' |' '''$|import (?:re|sys)$|from (?P<entry>[\w.]+) import \w+$|(?:el)?if \S.*:$"
    r"|sys\.argv\[0\] = |sys\.exit\(\w+\(\)\)$|\w+\(\)$"
)
"""The beginning of each line that installers write into a console script."""


def find_named(field: str, given: str | None, variable: str, remedy: str, program: str | None) -> Path | None:
    """Return the program that a user names, or the one on the PATH; None if there is neither.

    Args:
        field: the setting that names it.
        given: its value, a file or a program on the PATH.
        variable: the environment variable that counts without the setting.
        remedy: what to name instead, for a program that cannot be run.
        program: what is looked for on the PATH if the user names none; None: nothing.

    Raises:
        UserError: if the named program cannot be run.
    """
    name = given or os.environ.get(variable)
    wanted = os.path.expanduser(name) if name else program
    found = None if wanted is None else shutil.which(wanted)
    if found is not None:
        return Path(found).absolute()
    if not name:
        return None
    rule = "the file is not executable" if Path(name).exists() else "there is no such file"
    if given:
        raise SettingError(field, given, rule, remedy)
    raise UserError(f"{variable}={name!r}: {rule}; {remedy}")


def interpreter_of(executable: Path, entry_point: bytes) -> Path | None:
    """Return the Python that runs a console script, such as `vllm`; None for a wrapper or another kind of program.

    The three forms that installers write are supported: a path, `/usr/bin/env python3`, and the `/bin/sh` trampoline
    for paths that are too long or contain spaces. A script with any other line is a wrapper, which has to be run as it
    is: starting its Python would leave out what it does.
    """
    try:
        with executable.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    lines = head.decode("utf-8", "replace").splitlines()
    if not head.startswith(b"#!") or not _is_console_script(lines, entry_point.decode()):
        return None
    words = lines[0][2:].strip()
    trampoline = _TRAMPOLINE.match(lines[1].strip()) if len(lines) > 1 else None
    if words == "/bin/sh" and trampoline is not None:
        python = shlex.split(trampoline[1])[0]
    elif Path(words.split()[0]).name == "env":
        python = next((word for word in words.split()[1:] if not word.startswith("-") and "=" not in word), "")
    else:
        python = words if Path(words).exists() else words.split()[0]
    found = shutil.which(python) if _PYTHON.match(Path(python).name) else None
    return Path(found).absolute() if found is not None else None


def _is_console_script(lines: Sequence[str], entry_point: str) -> bool:
    """Return whether a script imports the entry point and does nothing else than what installers write."""
    found = [_OF_CONSOLE_SCRIPTS.match(line.strip()) for line in lines if line.strip()]
    entries = [match["entry"] for match in found if match and match["entry"]]
    return None not in found and entries == [entry_point]
