"""The traffic of a study as files that the script carries, in the form that `tuner load --workload` reads.

A workload is YAML text. The files that it reads (prompts, lengths, arrival times) travel compressed. One that is too
large for a script, that has changed since the study or is gone, does not travel: the script then needs it at its path,
with the content that the study read.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_spaces.regular_file import read_regular_file
from search_spaces.yaml_file import yaml_text
from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic

CARRIED_LIMIT = 2**20
"""The most bytes of all compressed files together that a script carries."""

COMPRESSED_LIMIT = 2**24
"""A file of more bytes is not compressed: it would not become small enough, and takes seconds."""

SINGLE_NAME = "traffic"
"""Stem of the file of a workload without a name."""


@dataclass(frozen=True)
class CarriedTraffic:
    """The traffic that a script carries.

    Attributes:
        workloads: file names to YAML texts, in the order in which the workloads are sent. Paths in them are relative to
            the folder of these files, or absolute for `needed`.
        files: file names to the gzip-compressed content of the files that the workloads read.
        sources: file names of `files` to the paths that they had in the study.
        needed: absolute paths to SHA-256 digests of files that do not travel.
    """

    workloads: Mapping[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    needed: Mapping[str, str] = field(default_factory=dict)


def carry_traffic(workload: Traffic | Suite, digests: Mapping[str, str]) -> CarriedTraffic:
    """Return the files of a workload.

    Args:
        workload: the workload.
        digests: path to the SHA-256 digest of each file that the study read.
    """
    names: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for path, digest in digests.items():
        content = _content(Path(path), digest)
        if content is None or sum(map(len, files.values())) + len(content) > CARRIED_LIMIT:
            continue
        # the form of a file of prompts depends on its suffix
        names[path] = f"file-{len(names)}" + (".json" if Path(path).suffix == ".json" else ".txt")
        files[names[path]] = content
    loads = workload.loads if isinstance(workload, Suite) else {SINGLE_NAME: workload}
    shared = {"temperature": workload.temperature}
    return CarriedTraffic(
        workloads={
            f"{name}.yaml": yaml_text(_without_absent({**_with_files(load.model_dump(mode="json"), names), **shared}))
            for name, load in loads.items()
        },
        files=files,
        sources={name: path for path, name in names.items()},
        needed={path: digest for path, digest in digests.items() if path not in names},
    )


def _content(path: Path, digest: str) -> bytes | None:
    """Return a file's compressed content; None if it is gone, is large, or is not what the study read."""
    try:
        content = read_regular_file(path, COMPRESSED_LIMIT)
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest() != digest:
        return None
    return gzip.compress(content, mtime=0)


def _with_files(data: Any, names: Mapping[str, str]) -> Any:
    """Return the data with the new name of every `file`; see `tuner.workloads.traffic.with_absolute_files`."""
    if isinstance(data, dict):
        return {
            key: names.get(value, value) if key == "file" and isinstance(value, str) else _with_files(value, names)
            for key, value in data.items()
        }
    return data


def _without_absent(data: Any) -> Any:
    """Return the data without keys whose value is None, which is their default."""
    if isinstance(data, dict):
        return {key: _without_absent(value) for key, value in data.items() if value is not None}
    return data
