"""The service's store on PostgreSQL: the contract."""

from __future__ import annotations

import pytest

from tests.contracts.service_access_contract import AccessContract
from tests.contracts.service_contract import DeleteContract, ListContract, RequestContract, SubmitContract
from tests.contracts.service_runs_contract import DriverContract, LeaseContract, LossContract, StartContract
from tests.postgres import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A new, empty database."""
    return postgres.new_database()


class TestPostgresqlSubmit(SubmitContract):
    """New submissions on PostgreSQL."""


class TestPostgresqlList(ListContract):
    """Lists on PostgreSQL."""


class TestPostgresqlRequest(RequestContract):
    """Requests on PostgreSQL."""


class TestPostgresqlDelete(DeleteContract):
    """Deletions on PostgreSQL."""


class TestPostgresqlLease(LeaseContract):
    """Leases on PostgreSQL."""


class TestPostgresqlStart(StartContract):
    """Starts on PostgreSQL."""


class TestPostgresqlDriver(DriverContract):
    """Drivers on PostgreSQL."""


class TestPostgresqlLoss(LossContract):
    """Lost drivers on PostgreSQL."""


class TestPostgresqlAccess(AccessContract):
    """Owners, tokens and the audit log on PostgreSQL."""
