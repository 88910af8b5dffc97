"""The part of the service's store for owners, tokens and the audit log."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from storage.columns import check_name, record_of, values_of
from storage.errors import StorageError
from storage.service.errors import TokenExists, UnknownToken
from storage.service.records import AuditEntry, Owner, Token
from storage.tables import AUDIT, OWNERS, TOKENS
from storage.transactions import Transactions, put, reading, writing

_LARGEST = 2**63 - 1  # of an entry's number; the databases refuse larger ones


class AccessStore(Transactions):
    """Who may use the service, how much, and what they did."""

    @reading
    def owners(self, session: Session) -> list[Owner]:
        """Return the owners that were set, by name. Another owner has the values of `Owner`'s defaults."""
        found = [record_of(Owner, row) for row in session.execute(select(OWNERS))]
        return sorted(found, key=lambda owner: owner.name)

    @writing
    def set_owner(self, session: Session, owner: Owner) -> None:
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
        put(session, OWNERS, "name", values_of(OWNERS, owner))

    @writing
    def add_token(self, session: Session, token: Token) -> None:
        """Store a new token.

        Raises:
            TokenExists: if its name or its digest is taken.
            StorageError: if a name is not printable or too long.
        """
        check_name("a token's name", token.name)
        check_name("an owner's name", token.owner)
        try:
            session.execute(insert(TOKENS).values(values_of(TOKENS, token)))
        except IntegrityError:
            raise TokenExists(f"there is already a token {token.name!r}; choose another name") from None

    @reading
    def token(self, session: Session, digest: str) -> Token | None:
        """Return the token of a digest, also an expired or revoked one; None if there is none."""
        return _token(session, digest)

    @reading
    def tokens_of(self, session: Session, digests: Collection[str]) -> dict[str, Token]:
        """Return the tokens of some digests by digest, also expired or revoked ones."""
        rows = session.execute(select(TOKENS).where(TOKENS.c.digest.in_(digests))) if digests else ()
        return {row.digest: record_of(Token, row) for row in rows}

    @reading
    def tokens(self, session: Session) -> list[Token]:
        """Return all tokens, in the order in which they were added."""
        return [record_of(Token, row) for row in session.execute(select(TOKENS).order_by(TOKENS.c.id))]

    @writing
    def revoke_token(self, session: Session, name: str, now: datetime) -> Token:
        """Revoke a token; one that is revoked keeps the time of its revocation.

        Raises:
            UnknownToken: if there is none of that name.
        """
        row = session.execute(select(TOKENS).where(TOKENS.c.name == name).with_for_update()).first()
        if row is None:
            raise UnknownToken(f"there is no token {name!r}; list the tokens to see their names")
        revoked_at = row.revoked_at or now
        session.execute(update(TOKENS).where(TOKENS.c.id == row.id).values(revoked_at=revoked_at))
        return replace(record_of(Token, row), revoked_at=revoked_at)

    @writing
    def forget_tokens(self, session: Session, prefix: str, now: datetime) -> None:
        """Delete expired tokens whose names begin with `prefix`."""
        named = TOKENS.c.name.startswith(prefix, autoescape=True)
        session.execute(delete(TOKENS).where(named, TOKENS.c.expires_at < now))

    @writing
    def touch_token(self, session: Session, name: str, now: datetime) -> None:
        """Store when a token was used last; an earlier time, and a name that no token has, change nothing."""
        earlier = or_(TOKENS.c.used_at.is_(None), TOKENS.c.used_at < now)
        session.execute(update(TOKENS).where(TOKENS.c.name == name, earlier).values(used_at=now))

    @writing
    def audit(self, session: Session, entry: AuditEntry) -> None:
        """Add an entry to the audit log; its `number` is not read. Lost acknowledgements may leave more than one.

        Raises:
            StorageError: if its details are not JSON.
        """
        session.execute(insert(AUDIT).values(values_of(AUDIT, entry)))

    @writing
    def forget_audit(self, session: Session, before: datetime, most: int) -> int:
        """Delete the oldest entries of the audit log, at most `most` and only those before a time; return how many."""
        oldest = session.execute(select(AUDIT.c.id, AUDIT.c.at).order_by(AUDIT.c.id).limit(most)).all()
        ids = [id for id, at in oldest if at < before]
        session.execute(delete(AUDIT).where(AUDIT.c.id.in_(ids)))
        return len(ids)

    @reading
    def audit_log(self, session: Session, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """Return entries of the audit log, the newest first.

        Args:
            limit: the most entries to return.
            before: only entries with a smaller number; None: from the newest.
        """
        query = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.id < min(before, _LARGEST))
        return [record_of(AuditEntry, row, number=row.id) for row in session.execute(query)]


def _token(session: Session, digest: str) -> Token | None:
    row = session.execute(select(TOKENS).where(TOKENS.c.digest == digest)).first()
    return None if row is None else record_of(Token, row)
