"""Every setting of `tuner serve`, declared once: the options of the command are these, as are those of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tuner.settings.declared import POLICY, SERVER, SIGN_IN, STUDIES, Setting, Settings, settings_of
from tuner.settings.study import StudySettings

_OF_STUDIES = settings_of(StudySettings)
STORAGE, VLLM, RAY_ADDRESS = (_OF_STUDIES[name][1] for name in ("storage", "vllm", "ray_address"))


@dataclass(frozen=True, kw_only=True)
class ServeSettings(Settings):
    """How a process of the service runs."""

    host: Annotated[
        str, Setting(SERVER, "ADDRESS", "Address to listen on. One beyond this machine needs a token first.")
    ] = "127.0.0.1"
    port: Annotated[int, Setting(SERVER, "PORT", "Port to listen on; 0: a free one.", least=0, most=65535)] = 8600
    tls_certificate: Annotated[
        Path | None, Setting(SERVER, "FILE", "Certificate for HTTPS, with {tls_key}.", shown="HTTP")
    ] = None
    tls_key: Annotated[Path | None, Setting(SERVER, "FILE", "Key of the certificate.", shown="HTTP")] = None
    connections_per_address: Annotated[
        int, Setting(SERVER, "INTEGER", "Connections of one address; raise it behind a proxy.", least=1, most=1000)
    ] = 500
    server_name: Annotated[
        Sequence[str],
        Setting(SERVER, "NAME", "Name by which clients reach it, such as a proxy's.", shown="any; on loopback its own"),
    ] = ()
    public_url: Annotated[
        str | None, Setting(SERVER, "URL", "Address of its page behind a proxy.", shown="that of the request")
    ] = None
    audit_days: Annotated[
        int, Setting(SERVER, "DAYS", "Days that a line of the audit log is kept.", least=1, most=36500)
    ] = 90
    log_format: Annotated[
        str,
        Setting(
            SERVER, "FORMAT", "text: lines for people; json: an object a line.", shown="$TUNER_LOG_FORMAT, else text"
        ),
    ] = ""
    storage: Annotated[str | None, STORAGE] = None
    folder: Annotated[Path, Setting(STUDIES, "DIR", "Folder of scripts and logs of the submitted studies.")] = Path(
        "tuner_service"
    )
    simulated: Annotated[int, Setting(STUDIES, "INTEGER", "Simulated studies that run at once.", least=0, most=64)] = 2
    vllm: Annotated[str | None, VLLM] = None
    ray_address: Annotated[str | None, RAY_ADDRESS] = None
    no_scheduler: Annotated[bool, Setting(STUDIES, "", "Only answer requests; another process schedules.")] = False
    keep_running: Annotated[bool, Setting(STUDIES, "", "Let running studies go on when this command is stopped.")] = (
        False
    )
    model_folder: Annotated[
        Sequence[str], Setting(POLICY, "DIR", "Users may name models below this folder.", shown="none")
    ] = ()
    no_hub_models: Annotated[bool, Setting(POLICY, "", "Users may not name models of a hub.")] = False
    allow_flag: Annotated[
        Sequence[str],
        Setting(POLICY, "NAME", "Users may give servers this flag, too, with every value.", shown="none"),
    ] = ()
    allow_env: Annotated[
        Sequence[str], Setting(POLICY, "NAME", "Users may set this variable of servers.", shown="none")
    ] = ()
    allow_secret: Annotated[
        Sequence[str],
        Setting(POLICY, "NAME", "Users may refer to this variable of this command as ${NAME}.", shown="none"),
    ] = ()
    watch_host: Annotated[
        Sequence[str],
        Setting(
            POLICY,
            "HOST:PORT",
            "Users may let the service read /metrics of servers there, to find drift; HOST may be a network such as "
            "10.0.0.0/24.",
            shown="none",
        ),
    ] = ()
    webhook: Annotated[
        Sequence[str],
        Setting(POLICY, "NAME", "Users may name this webhook; its address is in $TUNER_WEBHOOK_NAME.", shown="none"),
    ] = ()
    webhook_default: Annotated[
        str | None, Setting(POLICY, "NAME", "Webhook of studies that name none.", shown="none")
    ] = None
    oidc_issuer: Annotated[
        str | None, Setting(SIGN_IN, "URL", "OpenID Connect provider at which people sign in.", shown="by tokens alone")
    ] = None
    oidc_client_id: Annotated[
        str | None,
        Setting(
            SIGN_IN,
            "ID",
            "Client id of this service at the provider; its secret is in $TUNER_OIDC_CLIENT_SECRET.",
            shown="none",
        ),
    ] = None
    oidc_role: Annotated[
        Sequence[str],
        Setting(SIGN_IN, "GROUP=ROLE", "Role of the provider's group; * for everybody.", shown="none may sign in"),
    ] = ()
    oidc_owner: Annotated[str, Setting(SIGN_IN, "CLAIM", "Claim that names the owner of studies.")] = "email"
    oidc_groups: Annotated[str, Setting(SIGN_IN, "CLAIM", "Claim with the groups of a person.")] = "groups"
    oidc_scope: Annotated[
        Sequence[str], Setting(SIGN_IN, "SCOPE", "Scope that the provider is asked for.", shown="openid profile email")
    ] = ()
    oidc_hours: Annotated[int, Setting(SIGN_IN, "HOURS", "Hours for which a sign-in is valid.", least=1, most=720)] = 12
