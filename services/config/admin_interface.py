"""The configuration of the administrator's interface of an instance: where it listens, what it
keeps, and what the process that serves it is started with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from raylay.services.config.json_text import JsonText
from raylay.services.errors import ConfigurationError
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.net.tls_config import TlsConfig
from raylay.services.telemetry.logs import LogOptions

MEMORY = ":memory:"
"""Name of a statistics file for statistics that are kept in memory, and end with the process."""
STATISTICS_FILE = "statistics.db"
INTERVAL_MS_DEFAULT = 10_000
INTERVAL_MS_MIN = 1_000
RETENTION_MS_DEFAULT = 7 * 86_400_000
FILE_BYTES_MAX_DEFAULT = 512 * 1024 * 1024
SESSION_MS_DEFAULT = 86_400_000
WWW_AUTHENTICATE_DEFAULT = 'Basic realm="raylay", charset="UTF-8"'
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class AdminInterfaceConfig:
    """The configuration of the administrator's interface over HTTP (behaviour.md 9.1).

    Attributes:
        host, port: the address that the interface listens on.
        advertised: address `host:port` by which peers and people reach it; empty: the address that
            it listens on.
        statistics_file: file of the statistics database; a relative path is taken from the
            instance's data directory. `:memory:`: statistics end with the process.
        interval_ms: time between two samples of the statistics.
        retention_ms: age from which samples are removed.
        file_bytes_max: most bytes of the statistics; beyond them the oldest samples are removed.
        host_names: names, besides addresses and `localhost`, by which browsers may call the
            interface.
        get_actions: whether a GET request may perform an action. A page of another site can send
            one: see docs/deviations.md.
        anonymous_paths: regular expression of paths that need no logon; empty: none.
        headers: further headers of every answer, as `Name: value`.
        allow_origin: regular expression of origins whose pages may read answers; empty: none.
        session_ms: time after which a browser logs on again.
        www_authenticate: value of the header that asks for a logon.
        console: whether the console is served at `/`.
        tls: TLS settings of the interface; None: it speaks plain HTTP.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertised: str = ""
    statistics_file: str = STATISTICS_FILE
    interval_ms: int = INTERVAL_MS_DEFAULT
    retention_ms: int = RETENTION_MS_DEFAULT
    file_bytes_max: int = FILE_BYTES_MAX_DEFAULT
    host_names: tuple[str, ...] = ()
    get_actions: bool = False
    anonymous_paths: str = ""
    headers: tuple[str, ...] = ()
    allow_origin: str = ""
    session_ms: int = SESSION_MS_DEFAULT
    www_authenticate: str = WWW_AUTHENTICATE_DEFAULT
    console: bool = True
    tls: TlsConfig | None = None

    def check(self, where: str) -> None:
        """Raises ConfigurationError where a value cannot be used."""
        where = f"{where}: admin"
        if self.interval_ms < INTERVAL_MS_MIN:
            raise ConfigurationError(
                f"{where}: interval {self.interval_ms} ms: give at least {INTERVAL_MS_MIN} ms"
            )
        if self.retention_ms < self.interval_ms:
            raise ConfigurationError(
                f"{where}: retention {self.retention_ms} ms is shorter than the interval"
            )
        for name in ("anonymous_paths", "allow_origin"):
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise ConfigurationError(f"{where}: {name} is no expression: {error}") from None
        for header in self.headers:
            if HEADER.fullmatch(header) is None:
                raise ConfigurationError(
                    f"{where}: {header!r} is no header: give it as `Name: value`, on one line"
                )
        if not HEADER.fullmatch(f"x:{self.www_authenticate}"):
            raise ConfigurationError(f"{where}: www_authenticate is no value of a header")
        if self.tls is not None:
            self.tls.check(where, serves=True)


@dataclass(slots=True)
class AdminProcessConfig(JsonText):
    """The values that an instance gives to one start of its administrator's interface.

    Attributes:
        start_number: number of this start, never used twice; the instance talks to the process of
            the last start only.
        directory: data directory of the instance.
        guarded: whether a caller must log on.
        client_address: address of the transport by which messages are read and published.
        client_tls: TLS settings for that address; None: it has no TLS.
        type_definitions: message types that are defined besides the built-in ones.
        trace_directory: directory of the trace files on this host; empty: there are none.
    """

    instance: str
    group: str
    start_number: int
    unix_path: str
    directory: str
    interface: AdminInterfaceConfig
    guarded: bool = False
    client_address: str = ""
    client_tls: TlsConfig | None = None
    type_definitions: tuple[TypeDefinition, ...] = ()
    trace_directory: str = ""
    log: LogOptions = field(default_factory=LogOptions)

    @property
    def process_name(self) -> str:
        return f"{self.instance}.admin"
