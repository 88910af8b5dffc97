"""A server to deploy: what its script and every deployment format write, each in its own way."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from records.trials import Provenance
from search_spaces.argv import one_spelling, value_after
from search_spaces.render import gpus_of, instances_of, without_instances
from search_spaces.schema import VLLM
from search_spaces.yaml_file import plain_yaml
from tuner.engines.kind import Program
from tuner.engines.tensorrt_llm.options import split_options
from tuner.engines.vllm.instances import VISIBLE
from tuner.engines.vllm.kind import INSTANCES, VLLM_VARIABLE
from tuner.engines.vllm.kind import PROGRAM as VLLM_PROGRAM
from tuner.export.verification import Verification
from tuner.export.words import (
    Argument,
    arguments_of,
    nodes_in,
    paths_in,
    without_rank,
    without_trial_settings,
    without_trial_variables,
)
from tuner.scoring.goals import Slo

START_MARGIN = 4
"""A start may take this many times as long as the study's: a new machine has no compile cache and other disks."""

LEAST_START_S = 600.0
"""A start may take at least this long, in seconds: the first one also loads the weights over the network."""

_COUNT = re.compile(r"^(\d+ nodes of )?(\d+ × )?")
_NO_FILES = frozenset({"--root-path", "--uds", "--allowed-origins", "--api-key", "--download-dir"})
"""Flags whose value may start with `/` and is no file that the server reads."""
_OF_THE_SYSTEM = ("/dev/", "/proc/", "/tmp/")
"""Places that a container has of its own."""
_NOT_IN_NAME = re.compile(r"[^a-z0-9]+")
_NAME_LENGTH = 40


@dataclass(frozen=True)
class Deployment:
    """A server to deploy: the contents of its script, and what a platform must know of its start-up and its memory.

    Attributes:
        study: name of the study.
        trial: number of the trial.
        model: that is served, as the program takes it.
        served_name: name of the model in requests.
        argv: further arguments of the program. The trial's host, port and log settings in it are left out.
        environment: variables that the trial set. Its log and cache settings and its GPU are left out.
        vllm_version: version that the study ran.
        device: GPU or CPU that the trial ran on.
        date: day of the trial.
        provenance: of the recorded numbers.
        numbers: (label, value) pairs for the header.
        slos: SLOs that `--verify` checks.
        verdict: result of the study, for the header.
        verification: what `--verify` sends and compares.
        executable: the program that the study ran, for machines without one on the PATH.
        flag_effects: lines for the header: the effect of each flag.
        answers: line for the header: what is known about the answers, if a flag may change them.
        references: variables of the caller's environment that `argv` and `environment` refer to as `${NAME}`.
        missed: lines for the header: the SLOs that the trial misses; empty if it meets them.
        tuner: the tuner that exports the script, for machines without one on the PATH.
        program: the engine's program.
        drivers: versions of the GPU's driver that the study ran with; empty if they are not known.
        folder: the folder in which a user's command runs; None: any.
        gpus: GPUs of the trial; several instances that need more shared them.
        startup_s: the longest start-up of the trial in seconds, measured or simulated as the numbers are; None if it
            was not recorded.
        weights_gib: memory of the model's weights in GiB; None if it was not recorded.
    """

    study: str
    trial: int
    model: str
    served_name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    vllm_version: str
    device: str
    date: date
    provenance: Provenance
    numbers: tuple[tuple[str, str], ...]
    slos: tuple[Slo, ...]
    verdict: str
    verification: Verification
    executable: str | None = None
    flag_effects: tuple[str, ...] = ()
    references: frozenset[str] = frozenset()
    answers: str | None = None
    missed: tuple[str, ...] = ()
    tuner: str | None = None
    drivers: tuple[str, ...] = ()
    program: Program = VLLM_PROGRAM
    folder: str | None = None
    gpus: int = 1
    startup_s: float | None = None
    weights_gib: float | None = None

    def __post_init__(self) -> None:
        """Check that a shell script can hold the words and variables.

        Raises:
            ValueError: if a word contains NUL, or the name of a variable is impossible.
        """
        words = (self.model, self.served_name, self.vllm_version, self.folder or "", *self.program.command)
        for word in (*words, *self.argv, *self.environment.values()):
            if "\0" in word:
                raise ValueError(f"a script cannot contain a NUL byte: {word!r}")
        for name in self.environment:
            if not name or "=" in name or "\0" in name:
                raise ValueError(f"no environment variable can be called {name!r}")

    @property
    def server_words(self) -> tuple[str, ...]:
        """The arguments of the program: the model and its flags, without host, port and log settings.

        Those of a user's command have placeholders for host and port.
        """
        if self.nodes > 1:
            return self.program.words(self.model, self.served_name, without_rank(self.argv))
        flags = self.argv if self.program.command else without_trial_settings(self.argv)
        return self.program.words(self.model, self.served_name, flags)

    @property
    def nodes(self) -> int:
        """The nodes over which the trial's server ran, with a rank on each; such a script starts one rank."""
        return nodes_in(self.argv) if self.program.engine == VLLM else 1

    @property
    def card(self) -> str:
        """Name of one GPU: the device of a trial with several is `2 × NVIDIA L4`, or `2 nodes of 4 × NVIDIA L4`."""
        return _COUNT.sub("", self.device)

    @property
    def instances(self) -> int:
        """The servers behind one address."""
        return instances_of(self.argv) if self.program == INSTANCES else 1

    @property
    def launcher_variables(self) -> dict[str, str]:
        """What a launcher of several instances reads unless the caller sets it: the vLLM that it starts, and the GPUs.

        Instances share GPUs if the trial had fewer than they need, so a larger machine must not give them more.
        """
        if self.program != INSTANCES:
            return {}
        executable = self.environment.get(VLLM_VARIABLE)
        used = min(gpus_of(self.argv) * self.instances, self.gpus)
        gpus = "" if self.device == "cpu" else ",".join(map(str, range(used)))
        named = {VLLM_VARIABLE: executable, VISIBLE: gpus}
        return {name: value for name, value in named.items() if value}

    @property
    def plain_words(self) -> tuple[str, ...]:
        """The arguments without the options that the program reads from a file."""
        return split_options(self.server_words)[0] if self.program.options else self.server_words

    @property
    def options(self) -> str | None:
        """The content of the file of options; None for a program that reads none."""
        return plain_yaml(split_options(self.server_words)[1]) if self.program.options else None

    @property
    def variables(self) -> dict[str, str]:
        """The server's variables, in the order of their names, without those of a trial."""
        return without_trial_variables(self.environment)

    @property
    def model_folder(self) -> str | None:
        """The model's folder; None for a name on a hub."""
        return self.model if self.model.startswith(("/", "./", "../")) else None

    @property
    def host_paths(self) -> tuple[str, ...]:
        """Files and folders of the machine that the server reads: the model's folder, and those in flags."""
        own = () if self.model_folder is None else (self.model_folder,)
        found = [path for each in self.arguments if each.flag not in _NO_FILES for path in paths_in(each.values)]
        return tuple(dict.fromkeys((*own, *(path for path in found if not path.startswith(_OF_THE_SYSTEM)))))

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of one server after the program and its subcommand: the model, its served name, and flags."""
        words = self.server_words[len(self.program.subcommand) :]
        return words if self.instances == 1 else without_instances(words)

    @property
    def command(self) -> tuple[str, ...]:
        """The program by its name, and all its arguments.

        The program of a user's command, and the Python of SGLang, are the files that the study ran: one on the PATH
        may be another. Options are left out, which the program reads from a file.
        """
        if self.program.command:
            return (self.executable or self.program.name, *self.program.on_default_port(self.server_words))
        named = self.executable if self.program.recorded_first else None
        return (named or self.program.name, *self.plain_words)

    @property
    def flag_words(self) -> tuple[str, ...]:
        """The flags alone, without model and served name."""
        return self.words[1 if self.served_name == self.model else 3 :]

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The flags alone with their values."""
        return arguments_of(self.flag_words)

    @property
    def public_version(self) -> str:
        """vLLM's version without a local part such as `+cpu`."""
        return self.vllm_version.partition("+")[0]

    @property
    def on_cpu(self) -> bool:
        """Whether the server runs without a GPU."""
        return self.device == "cpu"

    @property
    def gpus_of_server(self) -> int:
        """GPUs of one server: those of its tensor, pipeline and data parallelism; 0 on a CPU."""
        if self.on_cpu:
            return 0
        return gpus_of([word for each in self.arguments for word in (each.flag, *each.values)])

    @property
    def shares_gpus(self) -> bool:
        """Whether several instances had a GPU together, or the cores of one machine."""
        return self.instances > 1 and (self.on_cpu or self.gpus_of_server * self.instances > self.gpus)

    def last_value(self, flag: str) -> str | None:
        """Return the last value of a flag by its long name; None without the flag."""
        words = one_spelling(self.flag_words)
        return value_after(flag, words) if flag in words else None

    @property
    def start_limit_s(self) -> int:
        """Seconds that a start may take before the platform gives up."""
        return math.ceil(max(LEAST_START_S, START_MARGIN * (self.startup_s or 0.0)))

    @property
    def name(self) -> str:
        """A name for services, by RFC 1035: from the study's, and never `vllm`.

        Kubernetes would set `VLLM_PORT` for a Service called `vllm`, which vLLM reads as its own port.
        """
        plain = _NOT_IN_NAME.sub("-", self.study.lower()).strip("-")
        named = plain if plain[:1].isalpha() else f"study-{plain}"
        return f"{named[:_NAME_LENGTH].rstrip('-')}-server"
