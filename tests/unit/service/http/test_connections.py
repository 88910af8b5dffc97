"""Which connection ends when there are too many."""

from __future__ import annotations

import pytest

from tuner.service.http.edge.connections import Connections, Limits, network_of


class Made:
    """A connection that notes its end."""

    ended = False

    def end(self) -> None:
        self.ended = True


def added(connections: Connections, address: str, *, waits: bool = True) -> Made:
    made = Made()
    connections.add(made, address)
    if waits:
        connections.waits(made)
    return made


def test_the_connection_that_has_waited_longest_ends_for_a_new_one_of_its_address() -> None:
    connections = Connections(Limits(most=10, per_address=2))
    other = added(connections, "10.0.0.2")
    first, second = (added(connections, "10.0.0.1") for _ in range(2))
    connections.waits(first)  # again, after an answer
    new = Made()
    assert connections.add(new, "10.0.0.1")
    assert [each.ended for each in (other, first, second, new)] == [False, False, True, False]


def test_a_connection_that_is_answered_does_not_end() -> None:
    connections = Connections(Limits(most=10, per_address=2))
    busy = [added(connections, "10.0.0.1", waits=False) for _ in range(2)]
    assert not connections.add(Made(), "10.0.0.1")
    assert connections.add(Made(), "10.0.0.2")
    assert not any(each.ended for each in busy)


def test_connections_above_the_limit_do_not_add_up() -> None:
    connections = Connections(Limits(most=10, per_address=2))
    for _ in range(2):
        added(connections, "10.0.0.1", waits=False)
    above = [added(connections, "10.0.0.1") for _ in range(5)]
    assert [each.ended for each in above] == [True, True, True, True, False]


def test_the_process_has_a_limit_for_all_addresses() -> None:
    connections = Connections(Limits(most=3, per_address=2))
    first, *_ = (added(connections, f"10.0.0.{index}") for index in range(3))
    assert connections.add(Made(), "10.0.0.9")
    assert first.ended


def test_a_closed_connection_makes_room() -> None:
    connections = Connections(Limits(most=1, per_address=1))
    first = added(connections, "10.0.0.1", waits=False)
    connections.remove(first)
    connections.remove(first)
    assert connections.add(Made(), "10.0.0.1")
    assert not first.ended


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
    ],
)
def test_hosts_of_ipv6_count_by_network(address: str, network: str) -> None:
    assert network_of(address) == network
