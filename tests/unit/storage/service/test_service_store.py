"""The contract of the service's store on SQLite and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.service_access_contract import AccessContract
from tests.contracts.service_contract import DeleteContract, ListContract, RequestContract, SubmitContract
from tests.contracts.service_events_contract import EventContract, RaceContract
from tests.contracts.service_figures_contract import FigureContract
from tests.contracts.service_messages_contract import MessageContract
from tests.contracts.service_runs_contract import DriverContract, LeaseContract, LossContract, StartContract


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.program("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return str(tmp_path / "tuner.db")
    empty: str = request.getfixturevalue("empty_database")
    return empty


class TestSubmissions(SubmitContract, ListContract, RequestContract, DeleteContract):
    """Submissions as people see them."""


class TestRuns(LeaseContract, StartContract, DriverContract, LossContract):
    """What schedulers and drivers do."""


class TestAccess(AccessContract):
    """Owners, tokens and the audit log."""


class TestEvents(EventContract, RaceContract, FigureContract, MessageContract):
    """What those who watch see."""
