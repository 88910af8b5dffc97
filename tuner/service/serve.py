"""One process of the service: the API, and a scheduler unless another process has its lease."""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from storage import open_store
from storage.service.errors import TokenExists
from storage.service.records import Role
from storage.service.store import ServiceStore, open_service_store
from tuner.client.address import is_loopback
from tuner.errors import SettingError
from tuner.service.asked.rules import ServerRules
from tuner.service.http.access import make_token
from tuner.service.http.app import create_app
from tuner.service.http.context import ServiceContext
from tuner.service.http.edge.connections import Limits
from tuner.service.http.models import NewToken
from tuner.service.http.server import run_server
from tuner.service.queue.rules import SIMULATED
from tuner.service.scheduler.launcher import Launcher
from tuner.service.scheduler.scheduler import KEEP_AUDIT, QueueState, Scheduler
from tuner.service.watching.logs import VARIABLE as LOG_FORMAT
from tuner.service.watching.logs import LogFormat, say, set_up
from tuner.service.watching.messages import Messenger
from tuner.service.watching.webhooks import Webhooks

FIRST_TOKEN = "admin"
"""Name of the token that a new service makes, and of its owner."""

EMPTY = ".empty"
"""The folder in which the service works, so that a submission's `owner/name` is a hub's and no folder of the server."""

ENDING_S = 60.0
"""Seconds that drivers have to end their servers when the service is stopped."""


@dataclass(frozen=True)
class ServeSettings:
    """How a process of the service runs.

    Attributes:
        url: of the database.
        folder: the service's folder.
        host: address to bind to.
        port: 0: a free one.
        simulated: devices for simulated studies.
        vllm: the vLLM executable; None: the one on PATH.
        ray_address: Ray cluster for the trials; None: this machine.
        rules: what submissions may ask.
        certificate: files of the certificate and its key, for HTTPS; None: HTTP.
        schedules: whether this process may schedule.
        keeps_running: whether drivers go on when this process is stopped.
        log_format: of this process and its drivers.
        webhooks: which submissions may name.
        limits: connections that clients may hold.
        names: by which clients reach it; empty: any, or on loopback without TLS those of loopback.
        keep_audit: how long a line of the audit log is kept.
    """

    url: str
    folder: Path
    host: str = "127.0.0.1"
    port: int = 8600
    simulated: int = 2
    vllm: str | None = None
    ray_address: str | None = None
    rules: ServerRules = field(default_factory=ServerRules)
    certificate: tuple[Path, Path] | None = None
    schedules: bool = True
    keeps_running: bool = False
    log_format: LogFormat = LogFormat.TEXT
    webhooks: Webhooks = field(default_factory=Webhooks)
    limits: Limits = field(default_factory=Limits)
    names: tuple[str, ...] = ()
    keep_audit: timedelta = KEEP_AUDIT


def serve(settings: ServeSettings) -> None:
    """Serve until a signal ends it.

    Raises:
        SettingError: for an address beyond this machine without a token, or a port that is taken.
    """
    settings = _with_whole_paths(settings)
    check_certificate(settings.certificate)
    set_up(settings.log_format, sys.stderr)
    os.environ[LOG_FORMAT] = settings.log_format.value  # drivers inherit it
    devices = find_kinds(settings)
    empty = settings.folder / EMPTY
    empty.mkdir(parents=True, exist_ok=True)
    os.chdir(empty)
    with closing(open_service_store(settings.url)) as service, closing(open_store(settings.url)) as store:
        listener = _listen(settings, service)
        first = first_token(service) if settings.log_format is LogFormat.TEXT else None
        scheme = "http" if settings.certificate is None else "https"
        host, port = listener.getsockname()[:2]
        address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        _announce(settings, f"tuner serves {address}; devices: {_summary(devices)}", service)
        if first is not None:
            print(f"token of the admin, shown once: {first}", flush=True)
        queue = QueueState()
        with _signals(), _scheduling(settings, service, devices, queue):
            context = ServiceContext(
                *(service, store, settings.url, settings.folder, devices, settings.rules, queue),
                secure=settings.certificate is not None,
                webhooks=settings.webhooks,
                names=_names(settings),
            )
            run_server(create_app(context), listener, settings.certificate, settings.limits)


def _with_whole_paths(settings: ServeSettings) -> ServeSettings:
    """Return the settings with whole paths: the service and its drivers work in folders of their own."""
    return replace(
        settings,
        url=_absolute(settings.url),
        folder=settings.folder.resolve(),
        vllm=None if settings.vllm is None else os.path.abspath(settings.vllm),
        certificate=None
        if settings.certificate is None
        else (settings.certificate[0].absolute(), settings.certificate[1].absolute()),
    )


def check_certificate(files: tuple[Path, Path] | None) -> None:
    """Check that a certificate and its key can be used, before anything is started.

    Raises:
        SettingError: if one cannot be read, or they do not belong together.
    """
    if files is None:
        return
    for name, path in zip(("tls_certificate", "tls_key"), files, strict=True):
        if not os.access(path, os.R_OK) or path.is_dir():
            raise SettingError(name, str(path), "there is no such file that can be read", "give a PEM file")
    try:
        # A password would be asked for at the terminal; an empty one makes an encrypted key an error.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files, password="")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror
        rule = f"it cannot be used with its key {files[1]}: {reason}"
        remedy = "give a certificate and its key as PEM files without a password"
        raise SettingError("tls_certificate", str(files[0]), rule, remedy) from None


def _announce(settings: ServeSettings, text: str, service: ServiceStore) -> None:
    """Say where the service is. A log is kept and sent to other hosts, so no token is in one."""
    if settings.log_format is LogFormat.TEXT:
        print(text, flush=True)
        return
    say(logging.INFO, text)
    if not service.tokens():
        say(logging.WARNING, "there is no token; run `tuner token add NAME` with the same database")


def find_kinds(settings: ServeSettings) -> dict[str, tuple[str, ...]]:
    """Return the names of the devices by kind: those of this machine or the cluster, and simulated ones.

    Raises:
        UserError: for a cluster without a usable vLLM, or a GPU that does not answer.
    """
    from tuner.use_cases.devices import devices_by_kind, find_cluster_devices, leave_cluster
    from tuner.use_cases.places import home

    if settings.ray_address is None:
        kinds = devices_by_kind()
    else:
        found = find_cluster_devices(settings.ray_address, None, settings.vllm, home()).devices
        leave_cluster()
        kind = found.profile.key
        kinds = {kind: tuple(f"{kind}:{index}" for index in range(len(found.names)))}
    if settings.simulated:
        kinds[SIMULATED] = tuple(f"{SIMULATED}:{index}" for index in range(settings.simulated))
    return kinds


def _absolute(url: str) -> str:
    """Return the URL with the whole path of a SQLite file."""
    path = url.removeprefix("sqlite:///")
    return url if path == url or path.startswith("file:") else f"sqlite:///{os.path.abspath(path)}"


def _summary(devices: Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{len(names)} {kind}" for kind, names in devices.items())


def first_token(service: ServiceStore) -> str | None:
    """Make the first token of a new service and return it; None if there is a token already."""
    if service.tokens():
        return None
    try:
        return make_token(service, NewToken(name=FIRST_TOKEN, owner=FIRST_TOKEN, role=Role.ADMIN)).token
    except TokenExists:  # another process of the service was faster
        return None


def _listen(settings: ServeSettings, service: ServiceStore) -> socket.socket:
    """Return the listening socket.

    Raises:
        SettingError: beyond loopback without a token, or for an address that cannot be used.
    """
    if not is_loopback(settings.host) and not service.tokens():
        remedy = "run `tuner token add NAME` first, with the same database"
        rule = "an address beyond this machine needs tokens, and there is none"
        raise SettingError("host", settings.host, rule, remedy)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sets TCP_NODELAY where the protocol is named; without it, each answer waits 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        rule = f"the address cannot be used: {error.strerror}"
        raise SettingError("port", settings.port, rule, "choose another one") from None
    return listener


def _names(settings: ServeSettings) -> frozenset[str] | None:
    """Return the names for which the server answers; None: all."""
    if not settings.names and not (is_loopback(settings.host) and settings.certificate is None):
        return None
    return frozenset(each.lower() for each in ("localhost", "127.0.0.1", "::1", settings.host, *settings.names))


@contextmanager
def _signals() -> Iterator[None]:
    """Let the first SIGINT or SIGTERM end the server only, and a second one the wait for the drivers.

    Uvicorn handles the signal itself, and raises it again when it has ended.
    """
    seen: list[int] = []

    def handle(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        say(logging.WARNING, "stopping: studies are saved and queued again; Ctrl-C ends at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _scheduling(
    settings: ServeSettings, service: ServiceStore, devices: Mapping[str, tuple[str, ...]], queue: QueueState
) -> Iterator[None]:
    """Schedule in a thread; at the end, ask this process's drivers to end, and wait for them."""
    if not settings.schedules:
        yield
        return
    launcher = Launcher(settings.url, settings.folder, settings.vllm, settings.ray_address, settings.rules)
    scheduler = Scheduler(service, launcher, devices, _note, queue, keep_audit=settings.keep_audit)
    stop = threading.Event()

    def schedule() -> None:
        try:
            scheduler.run(stop)
        finally:
            if not stop.is_set():  # a server that no longer schedules must not look healthy
                os.kill(os.getpid(), signal.SIGTERM)

    messenger = Messenger(service, settings.webhooks, _note, queue)
    threads = [
        threading.Thread(target=schedule, name="scheduler"),
        threading.Thread(target=messenger.run, args=(stop,), name="messenger"),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        if not settings.keeps_running:
            launcher.interrupt()
            if launcher.wait(ENDING_S):
                _note(f"some studies did not end within {ENDING_S:.0f} s; they end by themselves")


def _note(text: str, study: str | None = None) -> None:
    say(logging.WARNING, text, study=study)
