"""The configuration of a bootstrap: plain values."""

from __future__ import annotations

from dataclasses import dataclass

from raylay.services.messages.topics import TopicRule
from raylay.services.net.tls_config import TlsConfig
from raylay.services.security.modules import ModuleConfig


@dataclass(slots=True)
class BootstrapConfig:
    """The sources from which an empty instance copies its log before it serves.

    Attributes:
        sources: `host:port` of replication transports, in priority order.
        topics: which of the source's topics; none: all.
        retry_ms_min, retry_ms_max: pause after every source failed; doubles up to the maximum.
        tls: how they are dialled; None: without TLS.
        authenticator: what it says of itself there; None: as the instance does.
        authenticators: What it says at each of the sources, where they differ: one for each source,
            None where it says nothing.
    """

    sources: tuple[str, ...]
    topics: tuple[TopicRule, ...] = ()
    retry_ms_min: int = 200
    retry_ms_max: int = 10_000
    tls: TlsConfig | None = None
    authenticator: ModuleConfig | None = None
    authenticators: tuple[ModuleConfig | None, ...] = ()

    def authenticator_of(self, source: str) -> ModuleConfig | None:
        if not self.authenticators:
            return self.authenticator
        return self.authenticators[self.sources.index(source)]
