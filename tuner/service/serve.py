"""One process of the service: the API, and a scheduler unless another process has its lease."""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from search_spaces.argv import long_name
from storage import open_store
from storage.service.errors import TokenExists
from storage.service.records import Role
from storage.service.store import ServiceStore, open_service_store
from tuner.client.address import is_loopback
from tuner.errors import SettingError, reason_of
from tuner.files import home
from tuner.service.asked.rules import ServerRules
from tuner.service.http.access import make_token
from tuner.service.http.app import create_app
from tuner.service.http.context import ServiceContext
from tuner.service.http.edge.connections import Limits
from tuner.service.http.models import NewToken
from tuner.service.http.provider import Provider, read_provider
from tuner.service.http.server import run_server
from tuner.service.queue.rules import SIMULATED
from tuner.service.scheduler.launcher import Launcher
from tuner.service.scheduler.scheduler import Scheduler
from tuner.service.watching.deployed import allowed_hosts
from tuner.service.watching.drift import DriftWatcher
from tuner.service.watching.logs import VARIABLE as LOG_FORMAT
from tuner.service.watching.logs import LogFormat, say, set_up
from tuner.service.watching.messages import Messenger
from tuner.service.watching.webhooks import find_webhooks
from tuner.settings.serve import ServeSettings
from tuner.use_cases.devices import devices_by_kind, find_cluster_devices, leave_cluster
from tuner.use_cases.places import storage_url

FIRST_TOKEN = "admin"
"""Name of the token that a new service makes, and of its owner."""

EMPTY = ".empty"
"""The folder in which the service works, so that a submission's `owner/name` is a hub's and no folder of the server."""

ENDING_S = 60.0
"""Seconds that drivers have to end their servers when the service is stopped."""


def serve(settings: ServeSettings) -> None:
    """Serve until a signal ends it.

    Raises:
        SettingError: for an address beyond this machine without a token, or a port that is taken.
    """
    certificate = check_certificate(settings.tls_certificate, settings.tls_key)
    form = log_format(settings.log_format)
    webhooks = find_webhooks(settings.webhook, settings.webhook_default, os.environ)
    # Whole paths: the service and its drivers work in folders of their own.
    url, folder = _absolute(storage_url(settings.storage, create=True)), settings.folder.resolve()
    settings = replace(settings, vllm=None if settings.vllm is None else os.path.abspath(settings.vllm))
    rules, signing_in = _rules(settings), _signing_in(settings)
    limits, deployed = Limits(per_address=settings.connections_per_address), allowed_hosts(settings.watch_host)
    set_up(form, sys.stderr)
    os.environ[LOG_FORMAT] = form.value  # drivers inherit it
    devices = find_kinds(settings)
    empty = folder / EMPTY
    empty.mkdir(parents=True, exist_ok=True)
    os.chdir(empty)
    with closing(open_service_store(url)) as service, closing(open_store(url)) as store:
        listener = _listen(settings, service)
        first = first_token(service) if form is LogFormat.TEXT else None
        scheme = "http" if certificate is None else "https"
        host, port = listener.getsockname()[:2]
        address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        counts = ", ".join(f"{len(names)} {kind}" for kind, names in devices.items())
        _announce(form, f"tuner serves {address}; devices: {counts}", service)
        if first is not None:
            print(f"token of the admin, shown once: {first}", flush=True)
        context = ServiceContext(
            service,
            store,
            url,
            folder,
            devices,
            rules,
            secure=certificate is not None,
            webhooks=webhooks,
            deployed=deployed,
            names=_names(settings),
            **signing_in,
        )
        with _signals(), _scheduling(settings, context):
            run_server(create_app(context), listener, certificate, limits)


def _rules(settings: ServeSettings) -> ServerRules:
    return ServerRules(
        tuple(Path(folder).resolve() for folder in settings.model_folder),
        not settings.no_hub_models,
        frozenset(long_name(f"--{name.lstrip('-')}") for name in settings.allow_flag),
        frozenset(settings.allow_env),
        frozenset(settings.allow_secret),
        confirms=settings.ray_address is None,
    )


def log_format(given: str) -> LogFormat:
    """Return the format of the log: what is given, else that of the environment.

    Raises:
        SettingError: for another one.
    """
    text = given or os.environ.get(LOG_FORMAT) or LogFormat.TEXT
    try:
        return LogFormat(text)
    except ValueError:
        raise SettingError("log_format", text, "a log is text or json", "give one of them") from None


def check_certificate(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return the whole paths of a certificate and its key, which can be used; None without them.

    Raises:
        SettingError: if only one is given or can be read, or they do not belong together.
    """
    if (certificate is None) != (key is None):
        raise SettingError("tls_key", None, "a certificate and its key belong together", "give both")
    if certificate is None or key is None:
        return None
    files = certificate.absolute(), key.absolute()
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
    return files


def _announce(form: LogFormat, text: str, service: ServiceStore) -> None:
    """Say where the service is. A log is kept and sent to other hosts, so no token is in one."""
    if form is LogFormat.TEXT:
        print(text, flush=True)
        return
    say(logging.INFO, text)
    if not service.tokens():
        say(logging.WARNING, "there is no token; run `tuner service token add NAME` with the same database")


def find_kinds(settings: ServeSettings) -> dict[str, tuple[str, ...]]:
    """Return the names of the devices by kind: those of this machine or the cluster, and simulated ones.

    Raises:
        UserError: for a cluster without a usable vLLM, or a GPU that does not answer.
    """
    if settings.ray_address is None:
        kinds = devices_by_kind()
    else:
        found = find_cluster_devices(settings.ray_address, None, settings.vllm, home())
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
        remedy = "run `tuner service token add NAME` first, with the same database"
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
        rule = f"the address cannot be used: {reason_of(error)}"
        raise SettingError("port", settings.port, rule, "choose another one") from None
    return listener


def _names(settings: ServeSettings) -> frozenset[str] | None:
    """Return the names for which the server answers; None: all."""
    if not settings.server_name and not (is_loopback(settings.host) and settings.tls_certificate is None):
        return None
    page = urlsplit(settings.public_url or "").hostname or "localhost"
    own = ("localhost", "127.0.0.1", "::1", page, settings.host, *settings.server_name)
    return frozenset(each.lower() for each in own)


def _signing_in(settings: ServeSettings) -> dict[str, Any]:
    """Return the parts of the context about signing in.

    Raises:
        SettingError: for settings that cannot work, and for a page whose address only a request's `Host` would tell.
    """
    provider, public_url = read_provider(settings, os.environ), _public_url(settings)
    if provider is not None and public_url is None and _names(settings) is None:
        rule = "the provider sends browsers back to the page, and no setting names its address"
        raise SettingError("public_url", None, rule, "give {public_url} or {server_name}")
    return {
        "public_url": public_url,
        "provider": None if provider is None else Provider(provider),
        "sign_in_time": timedelta(hours=settings.oidc_hours),
    }


def _public_url(settings: ServeSettings) -> str | None:
    """Return the address of the page with a slash at its end; None: it is that of each request."""
    given = settings.public_url
    if given is None:
        return None
    with suppress(ValueError):
        parts = urlsplit(given)
        root = f"{parts.scheme}://{parts.netloc}/"
        named = parts.hostname and parts.port != 0 and parts.username is None
        if named and parts.scheme in ("http", "https") and given in (root, root[:-1]):
            return root
    raise SettingError("public_url", given, "not http:// or https:// and a name", "such as https://tuner.example")


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
def _scheduling(settings: ServeSettings, context: ServiceContext) -> Iterator[None]:
    """Schedule in a thread; at the end, ask this process's drivers to end, and wait for them."""
    if settings.no_scheduler:
        yield
        return
    service, queue = context.service, context.queue
    launcher = Launcher(context.url, context.folder, settings.vllm, settings.ray_address, context.rules)
    keep_audit = timedelta(days=settings.audit_days)
    scheduler = Scheduler(service, launcher, context.devices, _note, keep_audit, queue)
    stop = threading.Event()

    def schedule() -> None:
        try:
            scheduler.run(stop)
        finally:
            if not stop.is_set():  # a server that no longer schedules must not look healthy
                os.kill(os.getpid(), signal.SIGTERM)

    messenger = Messenger(service, context.webhooks, _note, queue)
    watcher = DriftWatcher(service, context.store, context.deployed, _note, queue)
    threads = [
        threading.Thread(target=schedule, name="scheduler"),
        threading.Thread(target=messenger.run, args=(stop,), name="messenger"),
        threading.Thread(target=watcher.run, args=(stop,), name="watcher"),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        if not settings.keep_running:
            launcher.interrupt()
            if launcher.wait(ENDING_S):
                _note(f"some studies did not end within {ENDING_S:.0f} s; they end by themselves")


def _note(text: str, study: str | None = None) -> None:
    say(logging.WARNING, text, study=study)
