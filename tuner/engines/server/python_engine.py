"""An engine that is a package of a Python: its version, packages and flags are asked of that Python.

The answer comes from `probe.py`, which runs in it together with the script `probe.py` in the engine's folder.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from records.trials import Failure, FailureKind, Phase, Provenance
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.kind import EngineKind
from tuner.engines.server.devices import WorkerDevice
from tuner.engines.server.flags import ServeFlags, cached_flags
from tuner.engines.server.program_engine import ProgramEngine, StartedServer
from tuner.errors import UserError, reason_of
from tuner.specs import TrialSpec

PROBE = Path(__file__).with_name("probe.py")
_PROBE_S = 120.0
_FLAGS_S = 600.0


@dataclass(frozen=True)
class PythonPackage:
    """How an engine is asked for: its name in texts, the script in its folder, and what a user has to name instead."""

    title: str
    script: Path
    remedy: str

    def ask(self, python: Path, limit_s: float, *options: str) -> dict[str, Any]:
        """Return what a Python answers.

        Raises:
            UserError: if it does not run, or gives no answer.
        """
        try:
            done = subprocess.run(
                [python, PROBE, self.script, *options],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            found: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"{python} does not run ({reason_of(error)}); {self.remedy}") from None
        except ValueError:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise UserError(f"{python} does not answer as a Python ({last}); {self.remedy}") from None
        return found


@dataclass(frozen=True)
class PythonInstallation:
    """One installed engine.

    Attributes:
        package: how the engine is asked for.
        executable: the program that is started.
        python: its Python; None where the program is no plain console script, so that its Python is not known.
        version: of the engine.
        packages: those of the script's `PACKAGES` that are beside it; None: not known.
    """

    package: PythonPackage
    executable: Path
    python: Path | None
    version: str
    packages: frozenset[str] | None

    @property
    def key(self) -> str:
        """A name for caches; it changes with the program's path, size and time, and with the version."""
        stat = self.executable.stat()
        text = f"{self.executable}|{stat.st_mtime_ns}|{stat.st_size}|{self.version}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def flags(self, home: Path) -> ServeFlags | None:
        """Return the flags of the engine's own parser, cached in `home`; None if the engine cannot be imported.

        The first call takes the time of an import, 15 s and more.
        """
        path = home / self.package.script.parent.name / f"flags-{self.key}.json"
        return cached_flags(path, self.package.title, self._dump)

    def _dump(self) -> dict[str, Any] | None:
        try:
            return None if self.python is None else self.package.ask(self.python, _FLAGS_S, "--flags")
        except UserError:
            return None


def python_installation(package: PythonPackage, executable: Path, python: Path) -> PythonInstallation:
    """Return the installation of a program and its Python.

    Raises:
        UserError: if the Python does not run, or has no such package.
    """
    found = package.ask(python, _PROBE_S)
    if found["version"] is None:
        raise UserError(f"{python} has no {package.title}; {package.remedy}")
    return PythonInstallation(package, executable, python, str(found["version"]), frozenset(found["packages"]))


class PythonEngine(ProgramEngine[StartedServer]):
    """A `ProgramEngine` whose own parser checks the flags of a trial.

    Combinations of values are checked when a server starts, before it loads the model. A check of its own would import
    the engine once more for each trial.
    """

    kind: EngineKind

    def __init__(self, settings: EngineSettings, found: PythonInstallation, devices: tuple[WorkerDevice, ...]) -> None:
        super().__init__(settings, devices)
        self._found = found
        self._tokenizers = settings.tokenizers

    @cached_property
    def _flags(self) -> ServeFlags | None:
        return self._found.flags(self._home)

    def info(self) -> EngineInfo:
        """Return the installation; the first call for a version reads the flags, see `PythonInstallation`."""
        return EngineInfo(
            name=self.kind.name,
            version=self._found.version,
            executable=str(self._found.executable),
            flags=self._flags.names if self._flags else None,
            provenance=Provenance.MEASURED,
            packages=self._found.packages,
            parser=self._flags,
        )

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why the parser refuses the trial's flags; None if it accepts them."""
        words = (*spec.launch.base_argv, *spec.launch.argv)
        refused = None if self._flags is None else self._flags.problem(words)
        return None if refused is None else Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, refused)
