"""Names of commands that publish: nobody else's while they run, and the next one's behind them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from raylay.services.client.arguments import listed
from raylay.services.commands.shared import client_names
from raylay.services.commands.shared.client_names import client_name

pytestmark = pytest.mark.covers(
    "Clients and protocol", "lives without a publish store", note="of commands"
)

_HOLD = """
import sys
from raylay.services.commands.shared.client_names import client_name

with client_name(sys.argv[1]) as name:
    print(name, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def command() -> str:
    """One that nobody else on this host has."""
    return f"test-{os.getpid()}"


def test_those_at_once_have_names_of_their_own(command: str) -> None:
    with ExitStack() as stack:
        names = [stack.enter_context(client_name(command)) for _ in range(3)]
        assert len(set(names)) == 3
        assert names[0] == f"raylay-{command}-{os.uname().nodename}-{os.getuid()}-1"
    with client_name(command) as again:
        assert again == names[0]


def test_a_name_that_was_given_back_is_the_next_ones(command: str) -> None:
    with client_name(command) as first, ExitStack() as stack:
        second = stack.enter_context(client_name(command))
        stack.close()
        with client_name(command) as third:
            assert third == second != first


def test_another_process_has_it_until_it_is_killed(command: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        theirs = process.stdout.readline().strip()
        with client_name(command) as mine:
            assert mine != theirs and mine.endswith("-2")
        process.kill()
        process.wait()
        with client_name(command) as mine:
            assert mine == theirs


def test_where_too_many_run_the_process_id_is_part_of_it(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_names, "AT_ONCE_MAX", 2)
    with client_name(command), client_name(command) as last, client_name(command) as more:
        assert last.endswith("-2")
        assert more.endswith(f"-pid-{os.getpid()}")


def test_a_single_address_is_a_list_of_one() -> None:
    assert [each.address for each in listed("c", "h:9")] == ["h:9"]
