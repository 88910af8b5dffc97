"""A temporary PostgreSQL server from the installed package, on a Unix socket in a temporary folder."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.programs import needed

READY_S = 60
MEMORY = Path("/dev/shm")
"""A file system in memory: a database is made there several times as fast as on a disk."""

ROOM = 4 * 2**30
"""Bytes that have to be free there; a database has 8 MB."""


@dataclass
class PostgresServer:
    """A server in a folder; its superuser `tuner` connects through `socket`, that folder, without a password."""

    programs: Path
    socket: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        with (self.socket / "log").open("ab") as log:
            self.process = _start(self.programs, self.socket, unprivileged_user(), log.fileno())
        _wait_until_ready(self.process, self.socket)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        """Stop the server as `pg_ctl stop -m fast` does: its connections are ended."""
        if self.process is not None:
            _stop(self.process)
            self.process = None

    def restart(self) -> None:
        """Stop the server and start it again."""
        self.stop()
        self.start()

    def end_connections(self) -> None:
        """End every connection of other programs."""
        with psycopg.connect(host=str(self.socket), user="tuner", dbname="postgres", autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def new_database(self, template: str | None = None) -> str:
        """Create a database, empty or as that of a URL `template`, and return its URL as a user would write it."""
        name = f"t{uuid.uuid4().hex}"
        source = "template1" if template is None else template.split("?")[0].rpartition("/")[2]
        with psycopg.connect(host=str(self.socket), user="tuner", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {source}")
        return f"postgresql://tuner@/{name}?host={self.socket}"


def unprivileged_user() -> str | None:
    """Return the user to run PostgreSQL as, because it refuses root; None if this process is not root's."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server until the block ends."""
    programs = needed("postgresql").resolve().parent
    user = unprivileged_user()
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir=MEMORY if in_memory else None))
    try:
        if user is not None:
            shutil.chown(folder, user)
        _initialise(programs, folder, user)
        server = PostgresServer(programs, folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _initialise(programs: Path, folder: Path, user: str | None) -> None:
    options = ["--auth=trust", "--username=tuner", "--encoding=UTF8", "--locale=C", "--no-sync"]
    command = [str(programs / "initdb"), "-D", str(folder / "data"), *options]
    done = subprocess.run(command, cwd=folder, user=user, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"initdb failed with {done.returncode}: {done.stderr.strip()}")


def _start(programs: Path, folder: Path, user: str | None, log: int) -> subprocess.Popen[bytes]:
    settings = ["listen_addresses=", f"unix_socket_directories={folder}", "timezone=Asia/Kolkata", "fsync=off"]
    options = [word for setting in settings for word in ("-c", setting)]
    command = [str(programs / "postgres"), "-D", str(folder / "data"), *options]
    return subprocess.Popen(command, cwd=folder, user=user, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait_until_ready(server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            psycopg.connect(host=str(folder), user="tuner", dbname="postgres").close()
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}") from error
            time.sleep(0.05)
        else:
            return


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
