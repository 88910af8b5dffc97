"""The service's store on PostgreSQL: the contract."""

from __future__ import annotations

import pytest

from tests.contracts.service_access_contract import AccessContract
from tests.contracts.service_contract import DeleteContract, ListContract, RequestContract, SubmitContract
from tests.contracts.service_events_contract import EventContract, RaceContract
from tests.contracts.service_figures_contract import FigureContract
from tests.contracts.service_messages_contract import MessageContract
from tests.contracts.service_runs_contract import DriverContract, LeaseContract, LossContract, StartContract


@pytest.fixture
def url(empty_database: str) -> str:
    return empty_database


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


class TestPostgresqlEvents(EventContract):
    """Events on PostgreSQL."""


class TestPostgresqlRaces(RaceContract):
    """Threads on PostgreSQL."""


class TestPostgresqlFigures(FigureContract):
    """The queue in numbers on PostgreSQL."""


class TestPostgresqlMessages(MessageContract):
    """Messages to webhooks on PostgreSQL."""
