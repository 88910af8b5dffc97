"""Ask an OpenID Connect provider who has signed in.

The flow is the authorization code flow with PKCE (OpenID Connect Core 1.0, section 3.1; RFC 7636). A person is the
subject of an ID token with the provider's signature, for this client, and with the nonce of this browser. Claims that
the token lacks are those of the provider's UserInfo endpoint for the same subject.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import quote_plus, urlsplit

import httpx

from storage.service.records import Role
from tuner.client.address import is_loopback
from tuner.errors import SettingError
from tuner.extras import need
from tuner.service.http.models import NAME
from tuner.service.http.problems import Problem
from tuner.service.watching.logs import say
from tuner.settings.serve import ServeSettings

SECRET = "TUNER_OIDC_CLIENT_SECRET"
"""The variable with the client's secret; a public client has none."""

EMAIL, VERIFIED = "email", "email_verified"
"""Claims: an address, and whether the provider has verified that it is the person's."""

EVERYBODY = "*"
"""Stands for a group of all people whom the provider lets in."""

TIMEOUT_S = 10.0
KEPT_S = 3600.0
"""Seconds for which the provider's description and keys are kept; a key that is not among them is read at once."""

LEEWAY_S = 60
"""Seconds by which the clocks of provider and service may differ."""

_OWNER = re.compile(NAME)
_SIGNATURES = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_RANKS = (Role.VIEWER, Role.USER, Role.ADMIN)
ASK = "ask an admin of this server"


@dataclass(frozen=True)
class Person:
    """Who signed in."""

    owner: str
    role: Role


@dataclass(frozen=True)
class Attempt:
    """What a browser keeps while its user signs in at the provider."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> Attempt:
        """Return an attempt that nobody can guess."""
        return cls(*(secrets.token_urlsafe(48) for _ in range(3)))

    @classmethod
    def read(cls, cookie: str | None) -> Attempt | None:
        """Return the attempt of a cookie; None if it has none."""
        parts = (cookie or "").split(".")
        return cls(*parts) if len(parts) == 3 and all(parts) else None

    @property
    def cookie(self) -> str:
        return f"{self.state}.{self.nonce}.{self.verifier}"

    @property
    def challenge(self) -> str:
        """The verifier's challenge by the method S256 (RFC 7636, section 4.2)."""
        return urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class ProviderSettings:
    """How the service knows its provider.

    Attributes:
        issuer: the provider's address, as `iss` of its tokens has it.
        roles: by group; `EVERYBODY` for all.
        client_secret: None for a public client.
        owner_claim: the claim that names the owner of studies.
    """

    issuer: str
    client_id: str
    roles: Mapping[str, Role]
    client_secret: str | None = field(default=None, repr=False)
    scopes: Sequence[str] = ("openid", "profile", "email")
    owner_claim: str = "email"
    groups_claim: str = "groups"


def read_provider(given: ServeSettings, environment: Mapping[str, str]) -> ProviderSettings | None:
    """Return the provider of a process's settings, with the secret of its environment; None without one.

    Raises:
        SettingError: for settings that cannot work together, and an address that is not safe.
        UserError: without the packages of the extra `oidc`.
    """
    issuer, client_id = given.oidc_issuer, given.oidc_client_id
    if issuer is None:
        for name in ("oidc_client_id", "oidc_role", "oidc_scope"):
            if value := getattr(given, name):
                raise SettingError(name, str(value), "there is no provider", "give its address by {oidc_issuer}")
        return None
    if not _is_safe(issuer):
        rule = "a provider's address begins with https://"
        raise SettingError("oidc_issuer", issuer, rule, "give the address that its tokens name as `iss`")
    if client_id is None:
        raise SettingError(
            "oidc_client_id", None, "a provider knows this service by an id", "give it by {oidc_client_id}"
        )
    if not given.oidc_role:
        rule = "without roles nobody may sign in"
        raise SettingError("oidc_role", None, rule, "give {oidc_role} GROUP=ROLE, such as '*=viewer' for everybody")
    if given.oidc_scope and "openid" not in given.oidc_scope:
        rule = "without the scope openid a provider sends no ID token"
        raise SettingError("oidc_scope", " ".join(given.oidc_scope), rule, "add {oidc_scope} openid")
    need("joserfc")
    return ProviderSettings(
        issuer,
        client_id,
        _roles(given.oidc_role),
        environment.get(SECRET) or None,
        tuple(given.oidc_scope) or ProviderSettings.scopes,
        given.oidc_owner,
        given.oidc_groups,
    )


def _is_safe(address: object) -> bool:
    """Return whether codes and secrets may be sent to an address: by HTTPS, or to this machine."""
    try:
        parts = urlsplit(address if isinstance(address, str) else "")
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def _roles(given: Sequence[str]) -> dict[str, Role]:
    found = {}
    for each in given:
        group, _, role = each.rpartition("=")
        if not group or role not in set(Role):
            names = ", ".join(Role)
            raise SettingError("oidc_role", each, f"it is GROUP=ROLE, with one of {names}", "such as 'ml-team=user'")
        found[group] = Role(role)
    return found


class Provider:
    """Asks a provider who somebody is."""

    def __init__(self, settings: ProviderSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Know a provider; `transport` takes the place of the network."""
        self.settings = settings
        self._transport = transport
        self._described: dict[str, Any] | None = None
        self._reading: asyncio.Task[dict[str, Any]] | None = None
        self._keys: Any = None
        self._read_at = -KEPT_S

    @property
    def host(self) -> str:
        """The provider's name on the page and in messages."""
        return urlsplit(self.settings.issuer).netloc

    async def address(self, attempt: Attempt, back: str) -> str:
        """Return where a browser signs in; the provider sends it to the address `back` afterwards.

        Raises:
            Problem: 503 if the provider does not answer.
        """
        asked = {
            **{"response_type": "code", "client_id": self.settings.client_id, "redirect_uri": back},
            **{"scope": " ".join(self.settings.scopes), "state": attempt.state, "nonce": attempt.nonce},
            **{"code_challenge": attempt.challenge, "code_challenge_method": "S256"},
        }
        place = (await self._description())["authorization_endpoint"]
        return str(httpx.URL(place).copy_merge_params(asked))

    async def person(self, attempt: Attempt, code: str, back: str) -> Person:
        """Return who has signed in, for the code that the provider gave the browser.

        Raises:
            Problem: 401 for a code or a token that is not valid, 403 for a person without a role, and 503 if the
                provider does not answer, or says nothing of use.
        """
        token = await self._exchanged(attempt, code, back)
        claims = await self._claims(str(token.get("id_token", "")), attempt.nonce)
        needed, place = {self.settings.owner_claim, self.settings.groups_claim}, await self._description()
        if self.settings.owner_claim == EMAIL:
            needed.add(VERIFIED)
        if not needed <= claims.keys() and "userinfo_endpoint" in place:
            headers = {"Authorization": f"Bearer {token.get('access_token', '')}"}
            more = await self._json("GET", place["userinfo_endpoint"], headers=headers)
            claims = {**(more if more.get("sub") == claims["sub"] else {}), **claims}
        return self._person(claims)

    async def _exchanged(self, attempt: Attempt, code: str, back: str) -> dict[str, Any]:
        settings, described = self.settings, await self._description()
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
        form |= {"code_verifier": attempt.verifier}
        auth, secret = None, settings.client_secret
        methods = described.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if secret is not None and "client_secret_basic" in methods:  # RFC 6749, section 2.3.1
            auth = httpx.BasicAuth(quote_plus(settings.client_id), quote_plus(secret))
        else:
            form |= {"client_id": settings.client_id, **({} if secret is None else {"client_secret": secret})}
        return await self._json("POST", described["token_endpoint"], data=form, auth=auth)

    async def _description(self) -> dict[str, Any]:
        """Return what the provider says of itself, which one request at a time reads for everybody who waits.

        Raises:
            Problem: 503 if it says nothing of use.
        """
        if self._described is None or time.monotonic() - self._read_at > KEPT_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._discovered())
            return await asyncio.shield(self._reading)  # a browser that leaves does not end it for the others
        return self._described

    async def _discovered(self) -> dict[str, Any]:
        """Read and keep the description (OpenID Connect Discovery 1.0)."""
        place = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        described = await self._json("GET", place)
        if (issuer := described.get("issuer")) != self.settings.issuer:
            raise self._unusable(f"{place} names the issuer {issuer!r}, not {self.settings.issuer!r}")
        named = [*_ENDPOINTS, *({"userinfo_endpoint"} & described.keys())]
        unsafe = [name for name in named if not _is_safe(described.get(name))]
        if unsafe:
            raise self._unusable(f"{place} has no https:// address as {', '.join(unsafe)}")
        self._described, self._keys, self._read_at = described, None, time.monotonic()
        return described

    async def _json(self, method: str, url: str, **request: Any) -> dict[str, Any]:
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_S, transport=self._transport) as client:
                response = await client.request(method, url, **request)
                found = response.raise_for_status().json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            if isinstance(error, httpx.HTTPStatusError) and _is_refused_code(error.response):
                raise self._refused(f"{url} refuses the code") from None
            raise self._unusable(f"{url} cannot be read: {_line(error)}") from None
        if not isinstance(found, dict):
            raise self._unusable(f"{url} has no JSON object")
        return found

    async def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token (OpenID Connect Core 1.0, section 3.1.3.7).

        Raises:
            Problem: 401 for one that is not valid; 503 if the provider's keys cannot be read.
        """
        jwt, errors = import_module("joserfc.jwt"), import_module("joserfc.errors")
        settings, described = self.settings, await self._description()
        for again in (False, True):
            if self._keys is None or again:
                self._keys = await self._read_keys(described["jwks_uri"])
            try:
                claims: dict[str, Any] = jwt.decode(token, self._keys, algorithms=list(_SIGNATURES)).claims
                break
            except (errors.JoseError, ValueError) as error:
                # a provider that has changed its keys signs with one that was not read yet
                if again:
                    raise self._refused(f"the ID token is not valid: {_line(error)}") from None
        registry = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": settings.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            registry.validate(claims)
        except errors.JoseError as error:
            raise self._refused(f"the ID token is not for this sign-in: {_line(error)}") from None
        if claims.get("azp", settings.client_id) != settings.client_id:
            raise self._refused(f"the ID token is another client's ({claims['azp']!r})")
        return claims

    async def _read_keys(self, url: str) -> Any:
        found = await self._json("GET", url)
        jwk, errors = import_module("joserfc.jwk"), import_module("joserfc.errors")
        try:
            return jwk.KeySet.import_key_set(found)
        except (errors.JoseError, ValueError, KeyError, TypeError) as error:
            raise self._unusable(f"{url} has no keys: {_line(error)}") from None

    def _person(self, claims: Mapping[str, Any]) -> Person:
        """Return the owner and the highest role that claims stand for."""
        settings = self.settings
        owner, groups = claims.get(settings.owner_claim), claims.get(settings.groups_claim) or []
        if not isinstance(owner, str) or not _OWNER.fullmatch(owner):
            raise Problem(403, f"the claim {settings.owner_claim!r} is {owner!r}, which names no owner; {ASK}")
        if settings.owner_claim == EMAIL and claims.get(VERIFIED) is not True:
            raise Problem(403, f"the provider has not verified the address {owner!r}; {ASK}")
        named = [EVERYBODY, *(groups if isinstance(groups, list) else [groups])]
        roles = [role for group, role in settings.roles.items() if group in named]
        if not roles:
            raise Problem(403, f"{owner!r} is in no group that has a role here; {ASK}", rule="no role")
        return Person(owner, max(roles, key=_RANKS.index))

    def _unusable(self, reason: str) -> Problem:
        say(logging.WARNING, f"sign-in: {reason}")
        return Problem(503, f"signing in at {self.host} failed; try again, or {ASK}", rule=reason)

    def _refused(self, reason: str) -> Problem:
        say(logging.WARNING, f"sign-in: {reason}")
        return Problem(401, f"signing in at {self.host} was refused; begin again, or {ASK}", rule=reason)


def _is_refused_code(response: httpx.Response) -> bool:
    """Return whether an answer refuses a code: it is unknown, used, expired, or another client's (RFC 6749, 5.2)."""
    try:
        found = response.json()
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("error") == "invalid_grant"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
