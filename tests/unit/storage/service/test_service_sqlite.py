"""The service's store on SQLite: the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.service_access_contract import AccessContract
from tests.contracts.service_contract import DeleteContract, ListContract, RequestContract, SubmitContract
from tests.contracts.service_events_contract import EventContract, RaceContract
from tests.contracts.service_figures_contract import FigureContract
from tests.contracts.service_messages_contract import MessageContract
from tests.contracts.service_runs_contract import DriverContract, LeaseContract, LossContract, StartContract


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return str(tmp_path / "tuner.db")


class TestSqliteSubmit(SubmitContract):
    """New submissions on SQLite."""


class TestSqliteList(ListContract):
    """Lists on SQLite."""


class TestSqliteRequest(RequestContract):
    """Requests on SQLite."""


class TestSqliteDelete(DeleteContract):
    """Deletions on SQLite."""


class TestSqliteLease(LeaseContract):
    """Leases on SQLite."""


class TestSqliteStart(StartContract):
    """Starts on SQLite."""


class TestSqliteDriver(DriverContract):
    """Drivers on SQLite."""


class TestSqliteLoss(LossContract):
    """Lost drivers on SQLite."""


class TestSqliteAccess(AccessContract):
    """Owners, tokens and the audit log on SQLite."""


class TestSqliteEvents(EventContract):
    """Events on SQLite."""


class TestSqliteRaces(RaceContract):
    """Threads on SQLite."""


class TestSqliteFigures(FigureContract):
    """The queue in numbers on SQLite."""


class TestSqliteMessages(MessageContract):
    """Messages to webhooks on SQLite."""
