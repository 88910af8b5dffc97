"""The SGLang engine: check configurations and start servers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from storage.records import Failure, FailureKind, Phase, Provenance
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.flags import ServeFlags
from tuner.engines.server.program_engine import ProgramEngine
from tuner.engines.server.running_server import HOST
from tuner.engines.sglang import kind
from tuner.engines.sglang.installation import find_python, installation
from tuner.engines.sglang.server import SglangServer
from tuner.engines.user_command import api_key_in
from tuner.specs import LaunchSpec, TrialSpec


class SglangEngine(ProgramEngine[SglangServer]):
    """SGLang on one worker; see `Engine`."""

    dropped_prefixes = ("SGLANG_", "SGL_")

    def __init__(self, settings: EngineSettings) -> None:
        """Find the Python that has SGLang.

        Raises:
            UserError: if there is none.
        """
        self._found = installation(find_python(settings.executable))
        self._tokenizers = settings.tokenizers
        super().__init__(settings, worker_devices(settings.device_index, settings.gpus))

    @cached_property
    def _flags(self) -> ServeFlags | None:
        return self._found.flags(self._home)

    def info(self) -> EngineInfo:
        """Return the installation. The first call for a version reads SGLang's parser, which takes 15 s and more."""
        found = self._found
        return EngineInfo(
            name=kind.SGLANG.name,
            version=found.version,
            executable=str(found.python),
            flags=self._flags.names if self._flags else None,
            provenance=Provenance.MEASURED,
            packages=found.packages,
            parser=self._flags,
        )

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why SGLang's parser refuses the trial; None if it accepts it.

        SGLang checks combinations of values when a server starts, before it loads the model. A check of its own would
        import SGLang once more for each trial.
        """
        words = (*spec.launch.base_argv, *spec.launch.argv)
        refused = None if self._flags is None else self._flags.problem(words)
        return None if refused is None else Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, refused)

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        """Return the command; without `--enable-metrics` the server would have no facts."""
        return (
            *(str(self._found.python), "-m", "sglang.launch_server", "--model-path", launch.model.name),
            *("--served-model-name", launch.model.served_name, "--host", HOST, "--port", str(port)),
            *("--enable-metrics", *launch.base_argv, *launch.argv),
        )

    def _server(self, spec: TrialSpec, words: tuple[str, ...], **started: Any) -> SglangServer:
        return SglangServer(records=self._records, tokenizers=self._tokenizers, **started)

    def _api_key(self, words: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
        return api_key_in(words)
