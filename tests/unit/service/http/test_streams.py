"""Open streams of events: they end with the right to read them, and their number is limited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from storage.service.records import Event, Role, SubmissionState, Token
from tests.served import Served, serving
from tuner.service.http.access import new_token
from tuner.service.http.edge import streams
from tuner.service.http.edge.streams import CHECK_S, MOST_STREAMS, PAGE, Stream

NOW = datetime(2026, 11, 26, 9, tzinfo=UTC)
SOON_S = CHECK_S + 3
"""Seconds within which a stream ends: the time of a check, and a margin for a busy machine."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@contextmanager
def opened(served: Served, study: str, secret: str) -> Iterator[httpx.Response]:
    headers = {"Authorization": f"Bearer {secret}"}
    address = f"{served.url}/v1/studies/{study}/events"
    with httpx.stream("GET", address, headers=headers, timeout=30, trust_env=False) as answer:
        yield answer


def status(served: Served, study: str, secret: str) -> int:
    with opened(served, study, secret) as answer:
        return answer.status_code


def revoke(served: Served) -> None:
    served.service.revoke_token("guest", served.now())


def unshare(served: Served) -> None:
    served.service.share("open", False)


def delete(served: Served) -> None:
    served.start("open")
    served.end("open", SubmissionState.DONE)
    served.service.delete("open")


def event(number: int) -> Event:
    return Event("s", number, NOW, "trial", {"number": number})


@pytest.mark.parametrize(
    ("kept", "number", "taken"),
    [
        ([], 0, None),  # woken without an event, such as by its end
        ([1, 2, 3], 0, [1, 2, 3]),
        ([2, 3], 2, [3]),  # the first one was read from the database
        ([1, 2], 2, []),
        ([3], 1, None),  # 2 is missing
        ([2, 1, 2], 0, [1, 2]),  # a row may be read late, or twice
    ],
)
def test_a_stream_takes_new_events_without_a_gap(kept: list[int], number: int, taken: list[int] | None) -> None:
    stream = Stream("s", "ada", "digest")
    for each in kept:
        stream.add(event(each))
    found = stream.take(number)
    assert (None if found is None else [each.number for each in found]) == taken
    assert stream.take(number) is None  # they are taken once


def test_a_stream_that_is_not_read_keeps_a_page_and_reads_the_rest_from_the_database() -> None:
    stream = Stream("s", "ada", "digest")
    for number in range(1, PAGE + 3):
        stream.add(event(number))
    assert [each.number for each in stream.fresh] == [PAGE + 1, PAGE + 2]
    assert stream.take(0) is None


@pytest.mark.parametrize(
    ("lose", "days", "refused"),
    [(revoke, 1, 401), (lambda _: None, 2 / 86400, 401), (unshare, 1, 404), (delete, 1, 404)],
    ids=["revoked", "expired", "unshared", "deleted"],
)
def test_a_stream_ends_soon_after_the_right_to_read_it(
    tmp_path: Path, lose: Callable[[Served], None], days: float, refused: int
) -> None:
    with serving(tmp_path) as served:
        served.submit("open", "ada", shared=True)
        secret, digest = new_token()
        expires = served.now() + timedelta(days=days)
        served.service.add_token(Token("guest", "guest", Role.USER, digest, served.now(), expires))
        with opened(served, "open", secret) as guest, opened(served, "open", served.tokens["root"]) as root:
            lines = guest.iter_lines()
            assert next(lines) == "id: 1"
            lose(served)
            began = time.monotonic()
            assert "event: cancelled" not in [*lines]
            assert time.monotonic() - began < SOON_S + 2
            assert root.status_code == 200
        assert status(served, "open", secret) == refused


def test_a_stream_of_one_who_may_read_goes_on_over_the_checks(served: Served) -> None:
    served.submit("kept", "ada")
    with opened(served, "kept", served.tokens["ada"]) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "id: 1"
        time.sleep(2 * CHECK_S)  # what is tested is that nothing happens meanwhile
        served.start("kept")
        assert "id: 2" in [next(lines) for _ in range(4)]


def test_an_owner_has_so_many_streams_and_others_have_theirs(served: Served) -> None:
    served.submit("many", "ada", shared=True)
    with ExitStack() as stack:
        for name in ["ada", "eve"] * (MOST_STREAMS // 2):  # two tokens of one owner
            assert stack.enter_context(opened(served, "many", served.tokens[name])).status_code == 200
        answer = stack.enter_context(opened(served, "many", served.tokens["ada"]))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
        answer.read()
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"] == "20 streams of ada are open, and no more may be; close some"
        assert status(served, "many", served.tokens["ben"]) == 200


def test_a_process_has_so_many_streams(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_IN_ALL", 2)
    served.submit("few", "ada", shared=True)
    with opened(served, "few", served.tokens["root"]), opened(served, "few", served.tokens["ben"]):
        with opened(served, "few", served.tokens["ada"]) as answer:
            answer.read()
        assert (answer.status_code, answer.json()["rule"]) == (429, "2 streams are open, and no more may be")
