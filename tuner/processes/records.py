"""The started processes, on disk before they run, so that what a killed tuner left behind is known and ended by id."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.processes.family import Identity, end, family, is_alive, myself

REAP_GRACE_S = 5.0


@dataclass(frozen=True)
class ProcessRecord:
    """One started process.

    `mark` names the record and is in the environment of all that the process starts. `process` leads its
    group. All of `owners` must live for the process to be wanted: the worker that started it and, if the caller names
    it, the driver. `host`, `boot` and `namespace` say where the ids mean something. `members` are descendants seen.
    """

    mark: str
    process: Identity
    port: int | None
    argv: tuple[str, ...]
    label: str
    owners: tuple[Identity, ...]
    host: str
    boot: str
    namespace: str
    created_at: str
    members: tuple[Identity, ...] = ()


@dataclass(frozen=True)
class Reaped:
    """A record that was dealt with: who was ended, and who could not be (then the record stays)."""

    record: ProcessRecord
    ended: tuple[Identity, ...]
    survivors: tuple[Identity, ...]


class ProcessRecords:
    """A folder with one JSON file per started process.

    `driver` is a further owner on this host: when it dies, its workers' processes are orphans at once, also while the
    workers are still about to notice.
    """

    def __init__(self, folder: Path, driver: Identity | None = None) -> None:
        self.folder = folder
        owners = [myself()]
        if driver is not None and driver not in owners:
            owners.append(driver)
        self.owners = tuple(owners)

    def record(
        self, mark: str, process: Identity, port: int | None, argv: tuple[str, ...], label: str
    ) -> ProcessRecord:
        """Write the record of a process that is about to run, to the disk itself, and return it.

        Raises:
            OSError: if it cannot be written.
        """
        place = _place()
        created = datetime.now(UTC).isoformat()
        record = ProcessRecord(mark, process, port, argv, label, self.owners, *place, created)
        self._write(record)
        return record

    def remember(self, record: ProcessRecord, members: set[Identity]) -> ProcessRecord:
        """Add descendants that were seen to a record, and return the new one."""
        updated = replace(record, members=tuple(sorted({*record.members, *members})))
        if updated != record:
            self._write(updated)
        return updated

    def remove(self, record: ProcessRecord) -> None:
        """Forget a process that is proved to be gone."""
        self._path(record.mark).unlink(missing_ok=True)

    def records(self) -> list[ProcessRecord]:
        """Return every readable record, the oldest first; a file that is none is left alone."""
        found = (_read(path) for path in self.folder.glob("*.json"))
        return sorted((record for record in found if record is not None), key=lambda record: record.created_at)

    def _path(self, mark: str) -> Path:
        return self.folder / f"{mark}.json"

    def _write(self, record: ProcessRecord) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self._path(record.mark)
        temporary = target.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(self.folder)


def reap_orphans(folder: Path, grace_s: float = REAP_GRACE_S) -> list[Reaped]:
    """End what dead owners left running and drop their records; return what was found.

    A record of another host or process namespace is left alone, one from before this host's last boot is dropped, and
    one whose owners all live is not touched. Only processes that are proved to be of a record's family are ended; the
    record is dropped once none of them is left.
    """
    if not folder.is_dir():
        return []
    with _locked(folder):
        registry = ProcessRecords(folder)
        return [reaped for record in registry.records() if (reaped := _reap(registry, record, grace_s)) is not None]


def _reap(registry: ProcessRecords, record: ProcessRecord, grace_s: float) -> Reaped | None:
    host, boot, namespace = _place()
    if record.host != host:
        return None
    if record.boot != boot:
        registry.remove(record)
        return Reaped(record, (), ())
    if record.namespace != namespace or all(is_alive(owner) for owner in record.owners):
        return None
    ending = end(lambda: family(record.process, record.mark, record.members), record.process, grace_s)
    if not ending.survivors:
        registry.remove(record)
    return Reaped(record, tuple(sorted(ending.ended)), tuple(sorted(ending.survivors)))


def _read(path: Path) -> ProcessRecord | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return ProcessRecord(
            mark=path.stem,
            process=Identity(*data["process"]),
            port=data["port"],
            argv=tuple(data["argv"]),
            label=data["label"],
            owners=tuple(Identity(*owner) for owner in data["owners"]),
            host=data["host"],
            boot=data["boot"],
            namespace=data["namespace"],
            created_at=data["created_at"],
            members=tuple(Identity(*member) for member in data["members"]),
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _place() -> tuple[str, str, str]:
    """Return host, boot and process namespace: a process id means something only together with them."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return platform.node(), boot, os.readlink("/proc/self/ns/pid")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "reap.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
