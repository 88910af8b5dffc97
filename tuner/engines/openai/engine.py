"""The engine `openai`: start any command that serves an OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.records import Failure, Provenance
from tuner.engines import user_command as command
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.openai import kind
from tuner.engines.openai.installation import find_program, version_of
from tuner.engines.openai.server import OpenAiServer
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.program_engine import ProgramEngine
from tuner.engines.server.running_server import HOST
from tuner.errors import SettingError
from tuner.specs import LaunchSpec, TrialSpec

API_KEY = "TUNER_API_KEY"
"""The variable with the key that clients must send, unless the command has it."""


class OpenAiEngine(ProgramEngine[OpenAiServer]):
    """A command on one worker; see `Engine`."""

    def __init__(self, settings: EngineSettings) -> None:
        """Find the program.

        Raises:
            SettingError: if there is none.
        """
        if settings.executable is None:
            raise SettingError("server_command", None, "this engine needs a command", "give {server_command} TEXT")
        self._program = find_program(settings.executable)
        super().__init__(settings, worker_devices(settings.device_index, settings.gpus))

    def info(self) -> EngineInfo:
        """Return the program; flags and packages are not known, and the version only if the program prints one."""
        version = version_of(self._program)
        return EngineInfo(kind.OPENAI.name, version, str(self._program), None, Provenance.MEASURED)

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return None: nothing is known of the program's flags."""
        return None

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        flags = (*launch.base_argv, *launch.argv)
        values = {command.HOST: HOST, command.PORT: str(port), command.MODEL: launch.model.name}
        return (str(self._program), *command.filled(launch.command[1:], flags, values))

    def _server(self, spec: TrialSpec, words: tuple[str, ...], **started: Any) -> OpenAiServer:
        return OpenAiServer(prompts_key=f"{spec.study}/{spec.uid}", records=self._records, **started)

    def _api_key(self, words: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
        return command.api_key_in(words) or environment.get(API_KEY)
