"""A provider for tests of signing in, which runs in a thread."""

from collections.abc import Iterator
from contextlib import contextmanager

from oidc_provider_mock import User, run_server_in_thread

CLIENT = "tuner"
ROLES = ("ml=user", "platform=admin", "guests=viewer")
PEOPLE = {"ada": ["ml"], "root": ["ml", "platform"], "eve": ["sales"], "vic": ["guests"]}
"""Groups by name; each person's address is NAME@example.com."""


@contextmanager
def providing() -> Iterator[str]:
    """Yield the address of a provider, which knows `PEOPLE`, and `una`, whose address it has not verified."""
    users = [_user(name, groups, True) for name, groups in PEOPLE.items()]
    with run_server_in_thread(user_claims=[*users, _user("una", ["ml"], False)]) as server:
        yield f"http://localhost:{server.server_port}"


def _user(name: str, groups: list[str], verified: bool) -> User:
    claims = {"email": f"{name}@example.com", "email_verified": verified, "groups": groups}
    return User(sub=name, claims=claims)
