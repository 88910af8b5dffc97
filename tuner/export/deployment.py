"""A server to deploy: what every deployment format writes, in its own way."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.argv import one_spelling, value_after
from search_spaces.render import gpus_of, without_instances
from tuner.export.serve_script import ServeScript

START_MARGIN = 4
"""A start may take this many times as long as the study's: a new machine has no compile cache and other disks."""

LEAST_START_S = 600.0
"""A start may take at least this long, in seconds: the first one also loads the weights over the network."""

_FLAG = re.compile(r"--?[A-Za-z][\w.+-]*(=.*)?", re.DOTALL)
_NO_FILES = frozenset({"--root-path", "--uds", "--allowed-origins", "--api-key", "--download-dir"})
"""Flags whose value may start with `/` and is no file that the server reads."""
_OF_THE_SYSTEM = ("/dev/", "/proc/", "/tmp/")
"""Places that a container has of its own."""
_NOT_IN_NAME = re.compile(r"[^a-z0-9]+")
_NAME_LENGTH = 40


@dataclass(frozen=True)
class Argument:
    """A flag as it is written, such as `--max-num-seqs`, and its values; the flag is empty for words before any."""

    flag: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deployment(ServeScript):
    """A server to deploy: the contents of its script, and what a platform must know of its start-up and its memory.

    Attributes:
        startup_s: the longest start-up of the trial in seconds, measured or simulated as the numbers are; None if it
            was not recorded.
        weights_gib: memory of the model's weights in GiB; None if it was not recorded.
    """

    startup_s: float | None = None
    weights_gib: float | None = None

    @property
    def model_folder(self) -> str | None:
        """The model's folder; None for a name on a hub."""
        return self.model if self.model.startswith(("/", "./", "../")) else None

    @property
    def host_paths(self) -> tuple[str, ...]:
        """Files and folders of the machine that the server reads: the model's folder, and those in flags."""
        own = () if self.model_folder is None else (self.model_folder,)
        found = [path for each in self.arguments if each.flag not in _NO_FILES for path in _paths_in(each.values)]
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


def _paths_in(values: Iterable[str]) -> Iterator[str]:
    """Yield the absolute paths in a flag's values: whole ones, those of `NAME=PATH`, and texts in JSON."""
    for value in values:
        try:
            texts = list(texts_in(json.loads(value)))
        except ValueError:
            texts = [value, value.partition("=")[2]]
        yield from (text for text in texts if text.startswith("/") and len(text) > 1)


def texts_in(content: Any) -> Iterator[str]:
    """Yield the texts of a JSON value; the names of members are none."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for part in content.values() if isinstance(content, Mapping) else content:
            yield from texts_in(part)


def arguments_of(words: Iterable[str]) -> tuple[Argument, ...]:
    """Group words into flags with their values, as argparse does; `--flag=value` has one value."""
    found: list[Argument] = []
    for word in words:
        match = _FLAG.fullmatch(word)
        if match is None:
            last = found.pop() if found else Argument("")
            found.append(Argument(last.flag, (*last.values, word)))
        elif match[1] is None:
            found.append(Argument(word))
        else:
            found.append(Argument(word[: match.start(1)], (match[1][1:],)))
    return tuple(found)
