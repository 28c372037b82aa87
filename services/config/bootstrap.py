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
        sources: addresses `host:port` of replication transports, in priority order.
        topics: topics that are copied from the source; empty: all of them.
        retry_ms_min, retry_ms_max: pause after every source failed; doubles up to the maximum.
        tls: TLS settings with which the sources are dialled; None: without TLS.
        authenticator: module that makes the bootstrap's credentials; None: the instance's module.
        authenticators: modules that make the credentials for each source, where they differ: one
            for each source, None for a source that is sent none.
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
