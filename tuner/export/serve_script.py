"""The contents of `best_serve.sh`, the script that starts the server of a trial, with the comments that open it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

from records.trials import Provenance
from search_spaces.render import gpus_of, instances_of
from search_spaces.schema import VLLM
from search_spaces.yaml_file import plain_yaml
from tuner.engines.kind import Program
from tuner.engines.tensorrt_llm.options import split_options
from tuner.engines.vllm.instances import VISIBLE
from tuner.engines.vllm.kind import INSTANCES, VLLM_VARIABLE
from tuner.engines.vllm.kind import PROGRAM as VLLM_PROGRAM
from tuner.export.quoting import escape_unprintable
from tuner.export.verification import Verification
from tuner.scoring.goals import Slo

_TRIAL_FLAGS = frozenset({"--host", "--port", "--uvicorn-log-level", "--log-config-file"})
_COUNT = re.compile(r"^(\d+ nodes of )?(\d+ × )?")
_RANK_FLAGS = frozenset({"--nnodes", "--node-rank", "--master-addr", "--master-port", "--data-parallel-rpc-port"})
_TRIAL_SWITCHES = frozenset(
    {"--disable-uvicorn-access-log", "--disable-log-requests", "--enable-log-requests", "--no-enable-log-requests"}
)
_TRIAL_VARIABLES = re.compile(
    rf"VLLM_LOGGING_\w+|VLLM_CONFIGURE_LOGGING|VLLM_CACHE_ROOT|VLLM_PORT|{VISIBLE}|{VLLM_VARIABLE}"
)
"""Settings of a trial's server that a deployed one does not have: where it listens, what it logs, and its GPU."""


@dataclass(frozen=True)
class ServeScript:
    """The contents of a script.

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


def without_trial_settings(argv: Iterable[str]) -> tuple[str, ...]:
    """Return `argv` without host, port and log settings, given as `--flag value` or as `--flag=value`."""
    return _without(argv, _TRIAL_FLAGS)


def without_rank(argv: Iterable[str]) -> tuple[str, ...]:
    """Return `argv` without the trial's settings and the flags by which the ranks of several nodes meet."""
    return _without(argv, _TRIAL_FLAGS | _RANK_FLAGS)


def nodes_in(argv: Sequence[str]) -> int:
    """Return the nodes of a trial's server: the value of the `--nnodes` that the tuner adds; 1 without it."""
    values = [value for word, value in pairwise(argv) if word == "--nnodes"]
    return int(values[-1]) if values and values[-1].isdecimal() else 1


def _without(argv: Iterable[str], flags: frozenset[str]) -> tuple[str, ...]:
    remaining: list[str] = []
    words = iter(argv)
    for word in words:
        flag = word.partition("=")[0]
        if flag in _TRIAL_SWITCHES:
            continue
        if flag in flags:
            if flag == word:
                next(words, None)
            continue
        remaining.append(word)
    return tuple(remaining)


def without_trial_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of a trial, in the order of their names."""
    kept = {name: value for name, value in environment.items() if not _TRIAL_VARIABLES.fullmatch(name)}
    return dict(sorted(kept.items()))


def header_rows(script: ServeScript) -> list[tuple[str, str]]:
    """Return labels with texts: study, verdict, numbers, SLOs, answers, flag effects, engine, hardware, date."""
    return [
        ("study", f"{script.study}, trial {script.trial}"),
        ("verdict", script.verdict),
        ("model", script.model),
        *((script.provenance.value, f"{label}: {value}") for label, value in script.numbers),
        *(("SLO", str(slo)) for slo in script.slos),
        *([] if script.answers is None else [("answers", script.answers)]),
        *(("missed", line) for line in script.missed),
        *(("flags", line) for line in script.flag_effects),
        (script.program.title, script.vllm_version + (f" ({script.executable})" if script.executable else "")),
        ("GPU", script.device),
        *([("driver", " ".join(script.drivers))] if script.drivers else []),
        ("date", script.date.isoformat()),
    ]


def header_lines(script: ServeScript, title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a comment: warnings, a title and rows, each escaped to one line."""
    simulated = script.provenance is Provenance.SIMULATED
    warning = ["# Simulated, not measured: the numbers below are predictions of the simulator."] if simulated else []
    if script.missed:
        warning.append("# This server does NOT meet the SLOs of its study; the lines below say by how much.")
    lines = (f"# {escape_unprintable(f'{label:<10}{text}')}" for label, text in rows)
    return [*warning, f"# {escape_unprintable(title)}", "#", *lines]
