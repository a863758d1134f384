"""A machine without DNS: said soon, and only where no server has answered before."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from tokenmill.inputs.remote import retry


class Clock:
    """Time that passes only where somebody sleeps or waits."""

    def __init__(self) -> None:
        self.now, self.tries = 0.0, 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def unknown_name(self, takes: float) -> None:
        self.tries += 1
        self.now += takes
        wrapped = ConnectionError("the library's own words")
        wrapped.__cause__ = socket.gaierror(-2, "Name or service not known")
        raise wrapped


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retry.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(retry, "_answered", False)
    return clock


@pytest.mark.parametrize("takes", [0.01, 5.0, 10.0])
def test_no_dns_is_said_within_ten_seconds(clock: Clock, takes: float) -> None:
    with pytest.raises(ConnectionError) as caught:
        retry.patiently(lambda: clock.unknown_name(takes), sleep=clock.sleep)
    assert clock.now <= 10
    told = "the name of the server cannot be looked up (no DNS: is there a network?)"
    assert retry.why(caught.value) == told


def test_the_server_is_named_where_the_library_tells() -> None:
    class ConnectError(ConnectionError):
        request = SimpleNamespace(url="https://huggingface.co/api/datasets/x")

    error = ConnectError("[Errno -2] Name or service not known")
    error.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert retry.why(error).startswith("the name huggingface.co cannot be looked up")


def test_a_line_that_was_there_is_waited_for_as_long_as_before(clock: Clock) -> None:
    assert retry.patiently(lambda: "an answer", sleep=clock.sleep) == "an answer"
    with pytest.raises(ConnectionError):
        retry.patiently(lambda: clock.unknown_name(0.01), sleep=clock.sleep)
    assert clock.tries == retry.ATTEMPTS
    assert clock.now > 60
