"""The TensorRT-LLM engine: check configurations and start servers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from storage.records import Failure, FailureKind, Phase, Provenance
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.flags import ServeFlags
from tuner.engines.server.program_engine import ProgramEngine
from tuner.engines.server.running_server import HOST
from tuner.engines.tensorrt_llm import kind
from tuner.engines.tensorrt_llm.installation import find_server, installation
from tuner.engines.tensorrt_llm.options import FILE_FLAG, METRICS_OPTIONS, OptionError, options_text, split_options
from tuner.engines.tensorrt_llm.server import TensorRtLlmServer
from tuner.specs import LaunchSpec, TrialSpec

OPTIONS_FILE = "options.yaml"
"""The file of options, among the artifacts of a trial."""


class TensorRtLlmEngine(ProgramEngine[TensorRtLlmServer]):
    """TensorRT-LLM on one worker; see `Engine`. Its PyTorch backend serves a model's folder without a build."""

    dropped_prefixes = ("TRTLLM_", "TLLM_")

    def __init__(self, settings: EngineSettings) -> None:
        """Find `trtllm-serve` and its Python.

        Raises:
            UserError: if there is none.
        """
        self._found = installation(find_server(settings.executable))
        super().__init__(settings, worker_devices(settings.device_index))

    @cached_property
    def _flags(self) -> ServeFlags | None:
        return self._found.flags(self._home)

    def info(self) -> EngineInfo:
        """Return the installation. The first call for a version imports TensorRT-LLM to read its flags and options."""
        found = self._found
        return EngineInfo(
            name=kind.TENSORRT_LLM.name,
            version=found.version,
            executable=str(found.executable),
            flags=self._flags.names if self._flags else None,
            provenance=Provenance.MEASURED,
            packages=found.packages,
            parser=self._flags,
        )

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why the program refuses the trial's flags, as far as its parser says; None if it accepts them.

        TensorRT-LLM checks the values of options when a server starts, before it loads the model.
        """
        words = (*spec.launch.base_argv, *spec.launch.argv)
        try:
            split_options(words)
        except OptionError as error:
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, str(error))
        refused = None if self._flags is None else self._flags.problem(words)
        return None if refused is None else Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, refused)

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        """Return the command as it is recorded, with options as words; without metrics there would be no facts."""
        metrics = (word for option in METRICS_OPTIONS for word in (option, "true"))
        return (
            *(str(self._found.executable), "serve", launch.model.name),
            *("--backend", "pytorch", "--host", HOST, "--port", str(port)),
            *(*metrics, *launch.base_argv, *launch.argv),
        )

    def _started(self, argv: tuple[str, ...], artifacts: Path) -> tuple[str, ...]:
        """Write the options to their file, and return the words that name it."""
        words, options = split_options(argv)
        path = artifacts / OPTIONS_FILE
        path.write_text(options_text(options), encoding="utf-8")
        return (*words, FILE_FLAG, str(path))

    def _server(self, spec: TrialSpec, words: tuple[str, ...], **started: Any) -> TensorRtLlmServer:
        return TensorRtLlmServer(records=self._records, **started)

    def _api_key(self, words: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
        """Return None: `trtllm-serve` checks no key."""
        return None
