"""The arguments of a client, checked before any connection is tried."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from raylay.services.client.connection import split_address
from raylay.services.client.failover import Server, as_server
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.errors import ConfigurationError, LocalProtocolError
from raylay.services.messages.digests import FILTER, digest
from raylay.services.messages.records import decode_record, publisher_id
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import client_context

ServerLike = Server | str | Mapping[str, Any]
Resolver = Callable[[], Sequence[ServerLike] | Awaitable[Sequence[ServerLike]]]


Tls = TlsConfig | ssl.SSLContext | bool | Mapping[str, Any] | None
"""TLS argument of a client; None and False: no TLS. True: TLS with the system's CAs."""


EXAMPLES = {
    "conflation_key": "/symbol",
    "grouping": "/carrier",
    "projection": "AVG(/delay) AS /delay",
}
"""An example of each argument that is a list of texts."""


def usable(tls: Tls, client_name: str) -> TlsConfig | ssl.SSLContext | None:
    """Checks the TLS argument `tls` and its files, and returns it in the form that a connection
    needs. The files are read anew at each connect.

    Raises:
        ConfigurationError: a file cannot be used, or a value is none.
    """
    if tls is None or tls is False or isinstance(tls, ssl.SSLContext):
        return tls or None
    where = f"client {client_name}: tls"
    if tls is True:
        return TlsConfig()
    if not isinstance(tls, TlsConfig | Mapping):
        raise ConfigurationError(
            f'{where} is of type {type(tls).__name__}: give True, {{"ca_file": "ca.pem"}}, a '
            "TlsConfig or an ssl.SSLContext"
        )
    config = tls if isinstance(tls, TlsConfig) else TlsConfig.of(dict(tls), where)
    client_context(config, where)
    return config


def check_owner(store: PublishStoreProtocol, client_name: str) -> None:
    """Raises ConfigurationError when the store is none, or holds publishes of another client
    name."""
    if isinstance(store, str | bytes | os.PathLike):
        raise ConfigurationError(
            f"client {client_name}: publish_store is a path: give LmdbPublishStore({store!r})"
        )
    held = next(store.replay(store.lowest), None) if store.messages else None
    if held is not None and decode_record(held[1]).publisher != publisher_id(client_name):
        raise ConfigurationError(
            f"the publish store given to client {client_name} holds publishes of another client "
            "name: give each name its own store"
        )


def listed(client_name: str, servers: ServerLike | Iterable[ServerLike]) -> tuple[Server, ...]:
    """Returns the servers that a list, or one server, names.

    Raises:
        ConfigurationError: there is none, or an address is none.
    """
    given: object = servers
    if isinstance(given, Server | str | Mapping):
        given = (given,)
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ConfigurationError(
            f"client {client_name}: servers is of type {type(given).__name__}: give a list of "
            "addresses, such as ['host-a:9007', 'host-b:9007'], or a function that returns one"
        )
    try:
        found = tuple(map(as_server, given))
    except ValueError as error:
        raise ConfigurationError(f"client {client_name}: {error}") from None
    if not found:
        raise ConfigurationError(f"client {client_name} has no servers: list one or give a look-up")
    for server in found:
        try:
            split_address(server.address)
        except ValueError as error:
            # Here, not at the first attempt: what cannot be an address would be tried for long.
            raise ConfigurationError(f"client {client_name}: {error}") from None
    return found


def sow_keys(keys: Sequence[bytes] | None) -> list[bytes] | None:
    """Returns SOW keys as a command carries them; None: all records.

    Raises:
        LocalProtocolError: they are no list of bytes.
    """
    if isinstance(keys, str | bytes) or not all(isinstance(key, bytes) for key in keys or ()):
        raise LocalProtocolError("keys: give a list of SOW keys, each as bytes")
    return None if keys is None else list(keys)


def texts(name: str, given: Sequence[str]) -> list[str] | None:
    """Returns a list of texts as a command carries it; None: it is empty.

    Args:
        name: name of the argument.

    Raises:
        LocalProtocolError: it is no list of texts.
    """
    if isinstance(given, str | bytes) or not all(isinstance(each, str) for each in given):
        raise LocalProtocolError(f"{name}: give a list of texts, such as [{EXAMPLES[name]!r}]")
    return list(given) or None


def sample_every(sampling_ratio: float) -> int:
    """Returns n where one in n publishes is sampled; 0: none is.

    Raises:
        ConfigurationError: the ratio is none of 0 to 1.
    """
    if not 0 <= sampling_ratio <= 1:
        raise ConfigurationError(f"sampling_ratio is {sampling_ratio}: give one of 0 to 1")
    return round(1 / sampling_ratio) if sampling_ratio else 0


def remembered_as(topic: str, message_type: str, filter: str) -> str:
    """Returns the name under which a bookmark store keeps a subscription that was given no name."""
    text = f"|{digest(filter.encode(), FILTER).hex()}" if filter else ""
    return f"{topic}|{message_type}{text}"
