"""Arguments of a client that are none are refused when it is made, with what to give: otherwise it
would try for long to connect, or do something else than its caller thinks."""

from __future__ import annotations

import asyncio
import inspect
import math
import socket
import threading
from fractions import Fraction
from typing import Any

import pytest

from raylay.services.client import Client, Server, SyncClient
from raylay.services.client.arguments import NUMBERS
from raylay.services.client.events import WaitingForServer
from raylay.services.errors import ConfigurationError, ConnectionLost
from raylay.storage.stores import MemoryPublishStore

FORM = "is not of the form host:port or unix:path"
GIVE = "give 'host:port', a Server, or a mapping with address"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"servers": "h"}, f"address 'h' {FORM}"),
        ({"servers": "https://h:9"}, f"address 'https://h:9' {FORM}"),
        ({"servers": "amy@h:9"}, FORM),
        ({"servers": "h:9,h:8"}, "; give several as a list"),
        ({"servers": "h:9 h:8"}, FORM),
        ({"servers": "h:99999"}, FORM),
        ({"servers": [("h", 9)]}, f"server ('h', 9) is none: {GIVE}"),
        ({"servers": [{"adress": "h:1"}]}, GIVE),
        ({"servers": 9007}, "servers is of type int: give a list of addresses, such as"),
        ({"servers": b"h:1"}, "servers is of type bytes: give a list"),
        ({"servers": []}, "has no servers: list one or give a look-up"),
        ({"tls": "ca.pem"}, 'tls is of type str: give True, {"ca_file": "ca.pem"}, a TlsConfig'),
        ({"tls": 5}, "tls is of type int: give True"),
        ({"tls": {"ca_fil": "x"}}, "tls has no setting 'ca_fil': did you mean 'ca_file'?"),
        ({"tls": {"zzz": "x"}}, "tls has no setting 'zzz': it has certificate, private_key"),
        ({"failover": "fast"}, "failover is 'fast': give 'safe' or 'any'"),
        ({"user_id": 5}, "user_id is of type int: give a text, or leave it out"),
        ({"password": None}, "password is of type NoneType: give a text, or leave it out"),
        ({"password": b"secret"}, "password is of type bytes: give a text, or leave it out"),
        ({"publish_store": "a.store"}, "publish_store is a path: give LmdbPublishStore('a.store')"),
        ({"bookmark_store": "a"}, "bookmark_store is 'a': give LmdbBookmarkStore('a')"),
        ({"connect_wait_s": "5"}, "connect_wait_s is '5': give a number of seconds, above 0"),
        ({"connect_wait_s": None}, "connect_wait_s is None: give a number of seconds, above 0"),
        ({"connect_wait_s": 0}, "connect_wait_s is 0: give a number of seconds, above 0"),
        ({"connect_timeout_s": -3}, "connect_timeout_s is -3: give a number of seconds, above 0"),
        ({"heartbeat_s": -1}, "heartbeat_s is -1: give a number of seconds, not below 0"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s is nan: give a number of seconds"),
        ({"publish_timeout_s": "1s"}, "publish_timeout_s is '1s': give a number of seconds"),
        ({"close_timeout_s": -0.1}, "close_timeout_s is -0.1: give a number of seconds"),
        ({"pause_min_ms": 0}, "pause_min_ms is 0: give a number of milliseconds, not below 1"),
        ({"pause_max_ms": []}, "pause_max_ms is []: give a number of milliseconds, not below 1"),
        ({"bookmark_flush_ms": True}, "bookmark_flush_ms is True: give a number of milliseconds"),
        ({"ack_conflation_ms": 0.5}, "ack_conflation_ms is 0.5: give a whole number of millisec"),
        ({"sampling_ratio": 2}, "sampling_ratio is 2: give a number, from 0 to 1"),
        ({"sampling_ratio": "all"}, "sampling_ratio is 'all': give a number, from 0 to 1"),
        ({"group": None}, "group is None: give a text, or leave it out"),
        ({"allow_other_groups": "false"}, "allow_other_groups is 'false': give True or False"),
        ({"group": "\ud800"}, "group is '\\ud800': give a text, or leave it out"),
        ({"pause_min_ms": 100, "pause_max_ms": 1}, "pause_min_ms is 100 and pause_max_ms 1: give"),
        ({"tracer": 5}, "tracer is 5: give a ClientTracer, or leave it out"),
        ({"publish_store": 5}, "publish_store is 5: give an LmdbPublishStore"),
        ({"publish_store": MemoryPublishStore}, "give an LmdbPublishStore or a MemoryPublishStore"),
        ({"bookmark_store": {}}, "bookmark_store is {}: give an LmdbBookmarkStore, or leave it"),
        ({"on_event": "print"}, "on_event is 'print': give a function, or leave it out"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_to_give(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client("desk", **{"servers": ["h:1"], **given})
    assert words in str(caught.value) and str(caught.value).startswith("client desk")
    assert "secret" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("name", [None, 5, "", b"desk"])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="the name must be a text"):
        Client(name, ["h:1"])
    with pytest.raises(ConfigurationError, match="the name must be a text"):
        Client(name=name, servers=["h:1"])


def test_a_name_without_utf_8_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"client '.ud800': the name has no form in UTF-8"):
        Client("\ud800", ["h:1"])


def test_every_number_of_a_client_has_a_rule() -> None:
    parameters = inspect.signature(Client).parameters.values()
    assert {each.name for each in parameters if each.annotation in ("int", "float")} == set(NUMBERS)


def test_a_client_for_threads_refuses_before_its_thread_begins() -> None:
    before = threading.active_count()
    with pytest.raises(ConfigurationError, match="connect_wait_s is '5': give a number of seconds"):
        SyncClient("desk", ["h:1"], connect_wait_s="5")  # type: ignore[arg-type]
    assert threading.active_count() == before


def test_other_numbers_than_those_of_python_are_taken() -> None:
    half: Any = Fraction(1, 2)
    client = Client("desk", ["h:1"], connect_wait_s=half, close_timeout_s=math.inf)
    assert client.close_timeout_s == math.inf


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (socket.EAI_NONAME, "the host name 'hst' is not known here: is it spelt well?"),
        (socket.EAI_AGAIN, "no name server answers for the host name 'hst'"),
    ],
)
def test_an_unknown_host_name_is_told_as_that(
    number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(number, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    told: list[object] = []
    client = Client("desk", ["hst:1"], connect_wait_s=0.2, on_event=told.append)
    with pytest.raises(ConnectionLost) as caught:
        asyncio.run(client.connect())
    assert words in str(caught.value)
    # The name may become known later, so the client goes on, and says why it waits.
    waiting = next(each for each in told if isinstance(each, WaitingForServer))
    assert words in dict(waiting.tried)["hst:1"]


@pytest.mark.parametrize(
    "servers",
    [
        "h:1",
        Server("h:1"),
        {"address": "h:1"},
        ["h:1"],
        (Server("h:1"),),
        [{"address": "h:1", "instance": "a"}],
        "[::1]:1",
        "unix:/run/a b,c",
    ],
)
def test_one_server_or_several_are_taken_in_each_form(servers: Any) -> None:
    (server,) = Client("desk", servers=servers).machine.options.servers
    assert server.address in ("h:1", "[::1]:1", "unix:/run/a b,c")
