"""Webhooks of a server: where messages about the ends of studies go.

The server's environment has the addresses, because one often contains a secret, and an address that users could choose
would let them reach what only the server reaches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tuner.errors import SettingError

PREFIX = "TUNER_WEBHOOK_"
"""Begin of the variables that have addresses and keys; servers of trials do not inherit them."""

SECRET = "_SECRET"
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class Webhook:
    """A webhook.

    Attributes:
        name: what submissions call it.
        url: of `http` or `https`; no text shows it.
        secret: key of the signature; None: messages are not signed.
    """

    name: str
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Webhooks:
    """The webhooks of a server by their names, and the one of submissions that name none."""

    by_name: Mapping[str, Webhook] = field(default_factory=dict)
    default: str | None = None

    def chosen(self, name: str | None) -> str | None:
        """Return the webhook of a submission that names this one.

        Raises:
            SettingError: for one that this server does not have.
        """
        if name is None:
            return self.default
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name))
            rule = f"this server has the webhooks {known}" if known else "this server has no webhook"
            raise SettingError("webhook", name, rule, "choose one, or leave it out" if known else "leave it out")
        return name


def variable_of(name: str) -> str:
    """Return the variable that has the address of a webhook."""
    return PREFIX + name.upper().replace("-", "_")


def find_webhooks(names: Iterable[str], default: str | None, environment: Mapping[str, str]) -> Webhooks:
    """Return the webhooks of these names, whose addresses the environment has.

    `default` is the webhook of submissions that name none; None: they have none.

    Raises:
        SettingError: for a name that is none, or a variable that has no address.
    """
    wanted = dict.fromkeys([*names, *([] if default is None else [default])])
    return Webhooks({name: _webhook(name, environment) for name in wanted}, default)


def _webhook(name: str, environment: Mapping[str, str]) -> Webhook:
    if not NAME.fullmatch(name) or variable_of(name).endswith(SECRET):
        rule = "a name has up to 31 lower-case letters, digits and -, begins with a letter, and does not end in -secret"
        raise SettingError("webhook", name, rule, "choose another one")
    variable = variable_of(name)
    url = environment.get(variable, "")
    if not _is_address(url):
        remedy = f"set {variable} to one such as https://hooks.example/tuner"
        raise SettingError("webhook", name, f"{variable} has no address", remedy)
    return Webhook(name, url, environment.get(variable + SECRET) or None)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        return False
