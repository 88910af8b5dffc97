"""Tokens in the service's database, for who can open it: the first ones, before a server answers."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import ValidationError

from storage.service.records import AuditEntry
from storage.service.store import open_service_store
from tuner.client.replies import ServiceToken
from tuner.errors import SettingError
from tuner.service.http.access import make_token
from tuner.service.http.models import NewToken, rule_of, token_of


class StoredTokens:
    """Does what the methods of `tuner.Client` of these names do, in a database.

    Raises:
        StorageError: by every method, if the database fails, or has another token of the name, or none.
    """

    def __init__(self, url: str) -> None:
        self._store = open_service_store(url)

    def close(self) -> None:
        self._store.close()

    def tokens(self) -> list[ServiceToken]:
        """Return all tokens without their secrets."""
        return [token_of(token) for token in self._store.tokens()]

    def add_token(
        self, name: str, *, owner: str | None = None, role: str = "user", days: int | None = None
    ) -> ServiceToken:
        """Make a token; its secret is in the answer's `token`.

        Raises:
            SettingError: for a name, an owner, a role or days that cannot be.
        """
        try:
            asked = NewToken.model_validate({"name": name, "owner": owner or name, "role": role, "days": days})
        except ValidationError as error:
            first = error.errors()[0]
            raise SettingError(str(first["loc"][0]), first["input"], rule_of(first)) from None
        made = make_token(self._store, asked)
        self._note("add token", name)
        return made

    def revoke_token(self, name: str) -> ServiceToken:
        """Make a token worthless from now on."""
        token = self._store.revoke_token(name, datetime.now(UTC))
        self._note("revoke token", name)
        return token_of(token)

    def _note(self, action: str, name: str) -> None:
        self._store.audit(AuditEntry(datetime.now(UTC), None, None, action, name, "done", {"by": "database"}))
