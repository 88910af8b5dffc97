"""The part of the service's store for owners, tokens and the audit log."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import IntegrityError

from storage.errors import StorageError
from storage.service.errors import TokenExists, UnknownToken
from storage.service.models import AuditRow, OwnerRow, TokenRow
from storage.service.records import AuditEntry, Owner, Role, Token
from storage.service.rows import check_name, insert_into
from storage.tables.mapping import to_json_value
from storage.transactions import Transactions

_LARGEST = 2**63 - 1  # of an entry's number; the databases refuse larger ones


class AccessStore(Transactions):
    """Who may use the service, how much, and what they did."""

    def owners(self) -> list[Owner]:
        """Return the owners that were set, by name. Another owner has the values of `Owner`'s defaults."""
        with self._reading() as session:
            rows = session.scalars(select(OwnerRow)).all()
            found = [Owner(row.name, row.weight, row.most_gpus, row.gpu_hours_a_week) for row in rows]
            return sorted(found, key=lambda owner: owner.name)

    def set_owner(self, owner: Owner) -> None:
        """Store an owner, in place of an earlier record of that name.

        Raises:
            StorageError: if the name is not printable or too long, the weight is not above 0, or a quota is below 0.
        """
        check_name("an owner's name", owner.name)
        if not (math.isfinite(owner.weight) and owner.weight > 0):
            raise StorageError(f"the weight of {owner.name!r} is {owner.weight:g}: it is a number above 0")
        for quota in (owner.most_gpus, owner.gpu_hours_a_week):
            if quota is not None and not (math.isfinite(quota) and quota >= 0):
                raise StorageError(f"a quota of {owner.name!r} is {quota:g}: it is 0 or more, or None for no quota")
        with self._writing() as session:
            insert = insert_into(session, OwnerRow).values(vars(owner))
            session.execute(insert.on_conflict_do_update(index_elements=["name"], set_=vars(owner)))

    def add_token(self, token: Token) -> None:
        """Store a new token.

        Raises:
            TokenExists: if its name or its digest is taken.
            StorageError: if a name is not printable or too long.
        """
        check_name("a token's name", token.name)
        check_name("an owner's name", token.owner)
        with self._writing() as session:
            session.add(TokenRow(**{**vars(token), "role": token.role.value}))
            try:
                session.flush()
            except IntegrityError:
                raise TokenExists(f"there is already a token {token.name!r}; choose another name") from None

    def token(self, digest: str) -> Token | None:
        """Return the token of a digest, also an expired or revoked one; None if there is none."""
        with self._reading() as session:
            row = session.scalar(select(TokenRow).where(TokenRow.digest == digest))
            return None if row is None else _token(row)

    def tokens_of(self, digests: Collection[str]) -> dict[str, Token]:
        """Return the tokens of some digests by digest, also expired or revoked ones."""
        with self._reading() as session:
            rows = session.scalars(select(TokenRow).where(TokenRow.digest.in_(digests))) if digests else ()
            return {row.digest: _token(row) for row in rows}

    def tokens(self) -> list[Token]:
        """Return all tokens, in the order in which they were added."""
        with self._reading() as session:
            return [_token(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.id))]

    def revoke_token(self, name: str, now: datetime) -> Token:
        """Revoke a token; one that is revoked keeps the time of its revocation.

        Raises:
            UnknownToken: if there is none of that name.
        """
        with self._writing() as session:
            row = session.scalar(select(TokenRow).where(TokenRow.name == name).with_for_update())
            if row is None:
                raise UnknownToken(f"there is no token {name!r}; list the tokens to see their names")
            row.revoked_at = row.revoked_at or now
            return _token(row)

    def touch_token(self, name: str, now: datetime) -> None:
        """Store when a token was used last; an earlier time, and a name that no token has, change nothing."""
        earlier = or_(TokenRow.used_at.is_(None), TokenRow.used_at < now)
        with self._writing() as session:
            session.execute(update(TokenRow).where(TokenRow.name == name, earlier).values(used_at=now))

    def audit(self, entry: AuditEntry) -> None:
        """Add an entry to the audit log; its `number` is not read.

        Raises:
            StorageError: if its details are not JSON.
        """
        values = {**vars(entry), "detail": to_json_value("detail", entry.detail)}
        del values["number"]
        with self._writing() as session:
            session.add(AuditRow(**values))

    def forget_audit(self, before: datetime, most: int) -> int:
        """Delete the oldest entries of the audit log, at most `most` and only those before a time; return how many."""
        with self._writing() as session:
            oldest = session.execute(select(AuditRow.id, AuditRow.at).order_by(AuditRow.id).limit(most)).all()
            ids = [id for id, at in oldest if at < before]
            session.execute(delete(AuditRow).where(AuditRow.id.in_(ids)))
            return len(ids)

    def audit_log(self, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """Return entries of the audit log, the newest first.

        Args:
            limit: the most entries to return.
            before: only entries with a smaller number; None: from the newest.
        """
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditRow.id < min(before, _LARGEST))
        with self._reading() as session:
            return [
                AuditEntry(row.at, row.token, row.owner, row.action, row.resource, row.result, row.detail, row.id)
                for row in session.scalars(query)
            ]


def _token(row: TokenRow) -> Token:
    return Token(
        name=row.name,
        owner=row.owner,
        role=Role(row.role),
        digest=row.digest,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        used_at=row.used_at,
    )
