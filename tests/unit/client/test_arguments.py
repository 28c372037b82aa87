"""Arguments of a client that are none are refused when it is made, with what to give: otherwise it
would try for long to connect, or do something else than its caller thinks."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.client import Client, Server
from raylay.services.errors import ConfigurationError

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
    ],
)
def test_a_wrong_argument_is_refused_with_what_to_give(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client("desk", **{"servers": ["h:1"], **given})
    assert words in str(caught.value) and str(caught.value).startswith("client desk")
    assert "secret" not in str(caught.value)


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
