"""`tuner serve`: the service."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tuner.cli.help import flag, option
from tuner.cli.options import RayAddress, Storage, Vllm

if TYPE_CHECKING:
    from tuner.service.watching.logs import LogFormat

SERVER = "Server"
QUEUE = "Studies"
POLICY = "What users may ask"


def serve(
    host: Annotated[
        str, option(SERVER, "ADDRESS", "Address to listen on. One beyond this machine needs a token first.")
    ] = "127.0.0.1",
    port: Annotated[int, option(SERVER, "PORT", "Port to listen on; 0: a free one.", least=0, most=65535)] = 8600,
    tls_certificate: Annotated[
        Path | None, option(SERVER, "FILE", "Certificate for HTTPS, with --tls-key.", shown="HTTP")
    ] = None,
    tls_key: Annotated[Path | None, option(SERVER, "FILE", "Key of the certificate.", shown="HTTP")] = None,
    connections_per_address: Annotated[
        int, option(SERVER, "INTEGER", "Connections of one address; raise it behind a proxy.", least=1, most=1000)
    ] = 500,
    server_name: Annotated[
        list[str] | None,
        option(SERVER, "NAME", "Name by which clients reach it, such as a proxy's.", shown="any; on loopback its own"),
    ] = None,
    storage: Storage = None,
    folder: Annotated[Path, option(QUEUE, "DIR", "Folder of scripts and logs of the submitted studies.")] = Path(
        "tuner_service"
    ),
    simulated: Annotated[int, option(QUEUE, "INTEGER", "Simulated studies that run at once.", least=0, most=64)] = 2,
    vllm: Vllm = None,
    ray_address: RayAddress = None,
    no_scheduler: Annotated[
        bool, flag(QUEUE, "Only answer requests; another process schedules.", "--no-scheduler")
    ] = False,
    keep_running: Annotated[
        bool, flag(QUEUE, "Let running studies go on when this command is stopped.", "--keep-running")
    ] = False,
    model_folder: Annotated[
        list[Path] | None, option(POLICY, "DIR", "Users may name models below this folder.", shown="none")
    ] = None,
    no_hub_models: Annotated[bool, flag(POLICY, "Users may not name models of a hub.", "--no-hub-models")] = False,
    allow_flag: Annotated[
        list[str] | None,
        option(POLICY, "NAME", "Users may give servers this flag, too, with every value.", shown="none"),
    ] = None,
    allow_env: Annotated[
        list[str] | None, option(POLICY, "NAME", "Users may set this variable of servers.", shown="none")
    ] = None,
    allow_secret: Annotated[
        list[str] | None,
        option(POLICY, "NAME", "Users may refer to this variable of this command as ${NAME}.", shown="none"),
    ] = None,
    webhook: Annotated[
        list[str] | None,
        option(POLICY, "NAME", "Users may name this webhook; its address is in $TUNER_WEBHOOK_NAME.", shown="none"),
    ] = None,
    webhook_default: Annotated[
        str | None, option(POLICY, "NAME", "Webhook of studies that name none.", shown="none")
    ] = None,
    audit_days: Annotated[
        int, option(SERVER, "DAYS", "Days that a line of the audit log is kept.", least=1, most=36500)
    ] = 90,
    log_format: Annotated[
        str,
        option(
            SERVER, "FORMAT", "text: lines for people; json: an object a line.", shown="$TUNER_LOG_FORMAT, else text"
        ),
    ] = "",
) -> None:
    """Serve studies to several people.

    Starts an API, a queue and a scheduler in one process. The first start prints the token of an admin, once.
    `tuner token add` makes further ones, `tuner submit` submits a study.

    tuner serve

    tuner serve --storage postgresql://tuner@db/tuner --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem
    """
    from search_spaces.argv import long_name
    from tuner.errors import SettingError
    from tuner.service.asked.rules import ServerRules
    from tuner.service.http.edge.connections import Limits
    from tuner.service.serve import ServeSettings, serve
    from tuner.service.watching.webhooks import find_webhooks
    from tuner.use_cases.places import storage_url

    if (tls_certificate is None) != (tls_key is None):
        raise SettingError("tls_key", None, "a certificate and its key belong together", "give both")
    rules = ServerRules(
        tuple(folder.resolve() for folder in model_folder or ()),
        not no_hub_models,
        frozenset(long_name(f"--{name.lstrip('-')}") for name in allow_flag or ()),
        frozenset(allow_env or ()),
        frozenset(allow_secret or ()),
    )
    certificate = None if tls_certificate is None or tls_key is None else (tls_certificate, tls_key)
    url = storage_url(storage, create=True)
    settings = ServeSettings(
        *(url, folder, host, port, simulated, vllm, ray_address, rules, certificate),
        schedules=not no_scheduler,
        keeps_running=keep_running,
        log_format=_format(log_format),
        webhooks=find_webhooks(webhook or (), webhook_default, os.environ),
        limits=Limits(per_address=connections_per_address),
        names=tuple(server_name or ()),
        keep_audit=timedelta(days=audit_days),
    )
    serve(settings)


def _format(given: str) -> LogFormat:
    """Return the format of the log.

    Raises:
        SettingError: for another one.
    """
    from tuner.errors import SettingError
    from tuner.service.watching.logs import VARIABLE, LogFormat

    text = given or os.environ.get(VARIABLE) or LogFormat.TEXT
    try:
        return LogFormat(text)
    except ValueError:
        raise SettingError("log_format", text, "a log is text or json", "give one of them") from None
