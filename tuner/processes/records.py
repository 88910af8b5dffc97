"""Record each started process on disk before it runs, and end the processes that a killed tuner left.

The first record of a worker starts the worker's watchdog (`tuner.processes.watchdog`), which ends the processes as soon
as the worker or the driver has ended. If the watchdog was killed, too, the next start of a worker does the same. The
watchdog imports this module without third-party packages.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.files import write_atomically
from tuner.processes.family import Identity, end_family, find_family, is_alive, own_identity
from tuner.processes.watchdog import Watchdog

ORPHAN_GRACE_S = 5.0
"""Seconds that an orphan has to end after SIGTERM, before SIGKILL."""


@dataclass(frozen=True)
class ProcessRecord:
    """One process that a worker started.

    `mark` names the record and is in the environment of everything that the process starts. `process` leads its group.
    The process is an orphan once one of `owners` has ended: the worker that started it or, if given, the driver.
    `host`, `boot` and `namespace` state where the process ids are valid. `members` are descendants that were seen,
    `segments` the files of shared memory that the family had mapped, and `folder` is the family's temporary folder.
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
    segments: tuple[str, ...] = ()
    folder: str | None = None


class ProcessRecords:
    """A folder with one JSON file for each started process."""

    def __init__(self, folder: Path, driver: Identity | None = None, redact: Callable[[str], str] = str) -> None:
        """Make the records of this process.

        Args:
            folder: where the files are.
            driver: a second owner on this host. When it ends, its workers' processes are orphans at once, even before
                the workers notice.
            redact: returns an argument without secrets, for the records.
        """
        self.folder = folder
        owners = [own_identity()]
        if driver is not None and driver not in owners:
            owners.append(driver)
        self.owners = tuple(owners)
        self._redact = redact
        self.watchdog = Watchdog(folder, self.owners)

    def add(
        self,
        mark: str,
        process: Identity,
        port: int | None,
        argv: tuple[str, ...],
        label: str,
        folder: Path | None = None,
    ) -> ProcessRecord:
        """Write the record of a process that is about to run, start the watchdog unless it runs, return the record.

        Args:
            mark: name of the record.
            process: the leader of the process group.
            port: the port on which it listens; None without one.
            argv: its command.
            label: its purpose, for people.
            folder: the temporary folder of this family alone, which is removed if the process becomes an orphan.

        Raises:
            OSError: if it cannot be written.
        """
        created = datetime.now(UTC).isoformat()
        shown = tuple(map(self._redact, argv))
        record = ProcessRecord(mark, process, port, shown, label, self.owners, *_process_id_scope(), created)
        if folder is not None:
            record = replace(record, folder=os.fspath(folder))
        self._write(record)
        self.watchdog.ensure_running()
        return record

    def update(self, record: ProcessRecord, members: set[Identity], segments: set[Path]) -> ProcessRecord:
        """Write the living descendants and the shared memory seen so far to a record, and return the new record."""
        names = tuple(sorted(os.fspath(segment) for segment in segments))
        updated = replace(record, members=tuple(sorted(members)), segments=names)
        if updated != record:
            self._write(updated)
        return updated

    def remove(self, record: ProcessRecord) -> None:
        """Remove the record of a process that has ended with everything that it started."""
        self._path(record.mark).unlink(missing_ok=True)

    def all(self) -> list[ProcessRecord]:
        """Return every readable record, the oldest first; files that are no records are ignored."""
        readable = (_read(path) for path in self.folder.glob("*.json"))
        return sorted((record for record in readable if record is not None), key=lambda record: record.created_at)

    def _path(self, mark: str) -> Path:
        return self.folder / f"{mark}.json"

    def _write(self, record: ProcessRecord) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(record.mark), json.dumps(asdict(record)))


def reap_orphans(folder: Path, grace_s: float = ORPHAN_GRACE_S) -> None:
    """End the processes whose owners have ended, and remove their records.

    A record of another host or process namespace, or one whose owners all live, is left alone. A record from before
    this host's last boot is removed. Only proved members of a record's family are ended. The record is removed once
    none of them is left.
    """
    if not folder.is_dir():
        return
    with _locked(folder / "reap.lock"):
        records = ProcessRecords(folder)
        for record in records.all():
            _reap(records, record, grace_s)


def reap_orphans_of(folder: Path, worker: Identity, grace_s: float) -> bool:
    """End the processes of one worker if an owner has ended, as `reap_orphans`; return whether it has records left.

    It does not wait for other cleanups: two that end the same family do each other no harm.
    """
    records = ProcessRecords(folder)
    own = [record for record in records.all() if record.owners[0] == worker]
    for record in own:
        _reap(records, record, grace_s)
    return any(record.owners[0] == worker for record in records.all())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel releases it when the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _reap(records: ProcessRecords, record: ProcessRecord, grace_s: float) -> None:
    host, boot, namespace = _process_id_scope()
    if record.host != host:
        return
    if record.boot != boot:
        records.remove(record)
        return
    if record.namespace != namespace or all(is_alive(owner) for owner in record.owners):
        return
    segments = {Path(segment) for segment in record.segments}
    folder = Path(record.folder) if record.folder is not None else None
    survivors = end_family(
        lambda: find_family(record.process, record.mark, record.members, folder), record.process, grace_s, segments
    )
    if not survivors:
        if folder is not None:
            from tuner import scratch  # only now: its imports would take 2 MB of a waiting watchdog

            scratch.remove(folder)
        records.remove(record)


def _read(path: Path) -> ProcessRecord | None:
    """Return the record of a file, without fields that only other versions know; None for a file that is no record."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        data["process"] = Identity(*data["process"])
        data |= {name: tuple(Identity(*each) for each in data[name]) for name in ("owners", "members")}
        data |= {name: tuple(data.get(name, ())) for name in ("argv", "segments")}
        known = {each.name: data[each.name] for each in fields(ProcessRecord) if each.name in data}
        return ProcessRecord(**known | {"mark": path.stem})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _process_id_scope() -> tuple[str, str, str]:
    """Return host, boot and process namespace: a process id is valid only together with them."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return os.uname().nodename, boot, os.readlink("/proc/self/ns/pid")
