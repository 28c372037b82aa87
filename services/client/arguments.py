"""The arguments of a client, checked before any connection is tried."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from typing import Any, NamedTuple, ParamSpec, TypeVar

from raylay.services.client.connection import split_address
from raylay.services.client.failover import Server, as_server
from raylay.services.client.keywords import shown_value
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.errors import ConfigurationError, LocalProtocolError
from raylay.services.messages.digests import FILTER, digest
from raylay.services.messages.records import decode_record, publisher_id
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import client_context

P = ParamSpec("P")
T = TypeVar("T")
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


class NumberRule(NamedTuple):
    """The numbers that an option of a client may have.

    Attributes:
        unit: the unit, for the error.
        least: the least number.
        above: whether the number must be above `least`.
        whole: whether the number must have no fraction.
        most: the largest number; None: there is none.
    """

    unit: str
    least: float = 0
    above: bool = False
    whole: bool = False
    most: float | None = None

    def refuses(self, value: object) -> str:
        """Returns what to give in place of a value; empty: the value is valid."""
        kind = Integral if self.whole else Real
        # In Python a bool is a number, too.
        if isinstance(value, kind) and not isinstance(value, bool):
            number = float(value)
            enough = number > self.least if self.above else number >= self.least
            if enough and (self.most is None or number <= self.most):
                return ""
        if self.most is not None:
            bound = f"from {self.least:g} to {self.most:g}"
        else:
            bound = f"above {self.least:g}" if self.above else f"not below {self.least:g}"
        whole = "whole " if self.whole else ""
        return f"a {whole}number{f' of {self.unit}' if self.unit else ''}, {bound}"


NUMBERS = {
    "heartbeat_s": NumberRule("seconds"),
    "connect_timeout_s": NumberRule("seconds", above=True),
    "connect_wait_s": NumberRule("seconds", above=True),
    "publish_timeout_s": NumberRule("seconds"),
    "close_timeout_s": NumberRule("seconds"),
    "pause_min_ms": NumberRule("milliseconds", 1),
    "pause_max_ms": NumberRule("milliseconds", 1),
    "bookmark_flush_ms": NumberRule("milliseconds"),
    "ack_conflation_ms": NumberRule("milliseconds", whole=True),
    "sampling_ratio": NumberRule("", most=1),
}
"""The rules of the options of a client that are numbers."""
METHODS = {
    "publish_store": ("replay", "an LmdbPublishStore or a MemoryPublishStore"),
    "bookmark_store": ("seen", "an LmdbBookmarkStore"),
    "tracer": ("publish_started", "a ClientTracer"),
}
"""The options of a client that are objects: a method that the object has, and what to give."""
NO_UTF_8 = "has no form in UTF-8: give a text without halves of surrogate pairs"
CALLABLES = ("answers", "on_event", "on_persisted", "on_publish_failed", "on_arrival")
"""The options of a client that are functions."""


def checks_options(construct: Callable[P, T]) -> Callable[P, T]:
    """Makes the constructor of a client check the types and ranges of its arguments. A wrong value
    raises a ConfigurationError that names the argument, the value, and what to give. Without the
    check the error would come later, or the client would not do what the caller means: it would
    wait without end, or use instances of other groups for the text `"false"`."""

    @wraps(construct)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        name = keywords["name"] if "name" in keywords else args[1] if len(args) > 1 else None
        if not isinstance(name, str) or not name:
            raise ConfigurationError(
                f"client {shown_value(name)}: the name must be a text that is not empty"
            )
        if not _is_sendable(name):
            raise ConfigurationError(f"client {shown_value(name)}: the name {NO_UTF_8}")
        for option, value in keywords.items():
            if wanted := _wanted_of(option, value):
                raise ConfigurationError(
                    f"client {name}: {option} is {shown_value(value)}: give {wanted}"
                )
        return construct(*args, **keywords)

    return checked


def _is_sendable(text: str) -> bool:
    """Returns whether a text has a form in UTF-8: half of a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wanted_of(option: str, value: object) -> str:
    """Returns what to give for an option in place of a value; empty: the value is valid."""
    if option in NUMBERS:
        return NUMBERS[option].refuses(value)
    if option == "group" and not (isinstance(value, str) and _is_sendable(value)):
        return "a text, or leave it out"
    if option in METHODS and value is not None and not isinstance(value, str | bytes | os.PathLike):
        method, kind = METHODS[option]
        if isinstance(value, type) or not callable(getattr(value, method, None)):
            return f"{kind}, or leave it out"
    if option == "allow_other_groups" and not isinstance(value, bool):
        return "True or False"
    if option in CALLABLES and value is not None and not callable(value):
        return "a function, or leave it out"
    if option == "bookmark_store" and isinstance(value, str | bytes | os.PathLike):
        return f"LmdbBookmarkStore({value!r})"
    return ""


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


def queue_limit(queue_bytes_max: int) -> int:
    """Returns the bytes that may wait for a consumer.

    Raises:
        LocalProtocolError: there are none.
    """
    if queue_bytes_max < 1:
        raise LocalProtocolError(
            f"queue_bytes_max is {queue_bytes_max}: give the bytes that may wait for the consumer, "
            "at least 1"
        )
    return queue_bytes_max


def sample_every(sampling_ratio: float) -> int:
    """Returns the number of publishes of which one is sampled; 0: no publish is sampled."""
    return round(1 / sampling_ratio) if sampling_ratio else 0


def remembered_as(topic: str, message_type: str, filter: str) -> str:
    """Returns the name under which a bookmark store keeps a subscription that was given no name."""
    text = f"|{digest(filter.encode(), FILTER).hex()}" if filter else ""
    return f"{topic}|{message_type}{text}"
