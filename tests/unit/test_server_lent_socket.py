"""Descriptors of connections that links lend, as they come to their instance."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raylay.services.protocol import control
from raylay.services.server.lent_socket import Descriptors


@pytest.fixture
def way(tmp_path: Path) -> Iterator[tuple[Descriptors, str]]:
    descriptors, path = Descriptors(), str(tmp_path / "lent")
    descriptors.open(path)
    yield descriptors, path
    descriptors.close()


def lend(path: str, destination: str, start_number: int) -> socket.socket:
    """A link hands its connection over; gives the destination's end of it."""
    mine, theirs = socket.socketpair()
    with mine, closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
        sender.connect(path)
        socket.send_fds(sender, [control.lent(destination, start_number)], [mine.fileno()])
    theirs.settimeout(5)
    return theirs


def is_open(theirs: socket.socket) -> bool:
    theirs.setblocking(False)
    try:
        return theirs.recv(1) != b""
    except BlockingIOError:
        return True


def test_links_that_lend_at_once_each_lend_their_own(way: tuple[Descriptors, str]) -> None:
    """An instance asks all of them in one turn."""
    descriptors, path = way
    with lend(path, "B", 1) as b, lend(path, "C", 4) as c:
        for name, number, theirs in (("B", 1, b), ("C", 4, c)):
            found = descriptors.take(name, number)
            assert found is not None, name
            with found:
                found.send(name.encode())
                assert theirs.recv(1) == name.encode()
        assert descriptors.take("B", 1) is None


def test_what_a_link_sent_that_is_gone_is_closed(way: tuple[Descriptors, str]) -> None:
    descriptors, path = way
    with lend(path, "B", 1) as gone, lend(path, "B", 2) as now, lend(path, "C", 1) as other:
        found = descriptors.take("B", 2)
        assert found is not None
        with found:
            assert not is_open(gone) and is_open(now) and is_open(other)
        descriptors.forget("C")
        assert not is_open(other)
    with lend(path, "B", 2) as earlier:
        assert descriptors.take("B", 3) is None and not is_open(earlier)
    with lend(path, "B", 3) as last:
        assert descriptors.take("C", 1) is None and is_open(last)
        descriptors.close()
        assert not is_open(last)
