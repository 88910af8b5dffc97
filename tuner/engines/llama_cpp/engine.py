"""The llama.cpp engine: check configurations and start servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.records import Failure, FailureKind, Phase, Provenance
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.llama_cpp import kind
from tuner.engines.llama_cpp.installation import find_server, installation
from tuner.engines.llama_cpp.server import LlamaCppServer
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.program_engine import ProgramEngine
from tuner.engines.server.running_server import HOST
from tuner.specs import LaunchSpec, TrialSpec

API_KEY = "LLAMA_API_KEY"
"""The variable in which a server finds the key that its clients must send."""

DROPPED_PREFIXES = ("LLAMA_", "GGML_")
"""Inherited variables with these prefixes are dropped: `LLAMA_ARG_*` would set flags of the server."""


class LlamaCppEngine(ProgramEngine[LlamaCppServer]):
    """llama.cpp on one worker; see `Engine`."""

    dropped_prefixes = DROPPED_PREFIXES

    def __init__(self, settings: EngineSettings) -> None:
        """Find the server.

        Raises:
            UserError: if there is none, or its version cannot be read.
        """
        self._found = installation(find_server(settings.executable))
        self._tokenizers = settings.tokenizers
        super().__init__(settings, worker_devices(settings.device_index) if self._found.gpus else ())

    def info(self) -> EngineInfo:
        """See `Engine`."""
        found, measured = self._found, Provenance.MEASURED
        return EngineInfo(kind.LLAMA_CPP.name, found.version, str(found.executable), found.flags, measured, frozenset())

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return the first flag that the server lacks; None if it has all. It has no check of values but its start."""
        known = self._found.flags
        for word in (*spec.launch.base_argv, *spec.launch.argv):
            flag = word.partition("=")[0]
            if known is not None and flag.startswith("--") and flag not in known:
                message = f"{flag} is not a flag of {kind.LLAMA_CPP.title} {self._found.version}"
                return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, message)
        return None

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        return (str(self._found.executable), *server_arguments(launch, port))

    def _server(self, spec: TrialSpec, words: tuple[str, ...], **started: Any) -> LlamaCppServer:
        return LlamaCppServer(records=self._records, tokenizers=self._tokenizers, **started)

    def _api_key(self, words: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
        return environment.get(API_KEY)


def server_arguments(launch: LaunchSpec, port: int) -> tuple[str, ...]:
    """Return the arguments of the server: its model, the model's name in requests, its port, and the flags.

    `--metrics` opens `/metrics`; without it the server has no facts.
    """
    return (
        *("--model", launch.model.name, "--alias", launch.model.served_name),
        *("--host", HOST, "--port", str(port), "--metrics", *launch.base_argv, *launch.argv),
    )
