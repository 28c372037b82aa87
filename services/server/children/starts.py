"""Starts of the instance's child processes: links, owners of queues, buffers of slow clients, the
administrator's interface, the process that runs actions."""

from __future__ import annotations

from dataclasses import replace

from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.config.admin_interface import AdminProcessConfig
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import (
    DestinationConfig,
    LinkConfig,
    QueueOwnerConfig,
    reachable,
)
from raylay.services.net.tls_config import TlsConfig
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.instance import Identity
from raylay.services.server.children.supervisor import ChildHandle, ChildStart
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.services.server.runtime import InstanceRuntime
from raylay.storage.queue import store_path


class ChildStarts:
    """See the file's docstring. Each method is called in a thread, may block, and may raise: the
    start is then tried again. `start_number` tells a process from earlier ones. The instance
    listens at its Unix socket before the first start.

    Args:
        start: starts a process with its configuration.
    """

    def __init__(self, runtime: InstanceRuntime, start: ChildStart) -> None:
        self._runtime = runtime
        self._start = start

    def link(
        self, identity: Identity, destination: DestinationConfig, start_number: int
    ) -> ChildHandle:
        """Starts the process of a link."""
        runtime = self._runtime
        config = runtime.config
        return self._start(
            LinkConfig(
                config.name,
                config.group,
                identity.incarnation,
                start_number,
                runtime.unix_path,
                str(runtime.directory / JOURNAL_DIRECTORY),
                config.journal.archive_directory,
                replace(
                    destination,
                    authenticator=destination.authenticator or config.authenticator,
                    authenticators=tuple(
                        each or config.authenticator for each in destination.authenticators
                    ),
                ),
                config.tracing,
                config.log,
                reachable(runtime.replication_address),
                config.drills,
                config.type_definitions,
            )
        )

    def queue_owner(
        self, identity: Identity, definition: QueueDefinition, start_number: int
    ) -> ChildHandle:
        """Starts the process that owns a queue."""
        runtime = self._runtime
        config = runtime.config
        return self._start(
            QueueOwnerConfig(
                config.name,
                config.group,
                identity.incarnation,
                identity.life,
                start_number,
                runtime.unix_path,
                str(runtime.directory / JOURNAL_DIRECTORY),
                config.journal.archive_directory,
                str(store_path(runtime.directory, definition.stored_as)),
                definition,
                config.tracing,
                config.log,
                config.type_definitions,
            )
        )

    def buffer(self, pool: str, start_number: int, path: str, disk_bytes_max: int) -> ChildHandle:
        """Starts the process that buffers what the slow clients of a pool have not read.

        Args:
            path: the buffer's file.
        """
        runtime = self._runtime
        config = runtime.config
        return self._start(
            SlowClientBufferConfig(
                config.name,
                pool,
                start_number,
                runtime.unix_path,
                path,
                disk_bytes_max,
                config.log,
            )
        )

    def admin(self, start_number: int) -> ChildHandle:
        """Starts the process of the administrator's interface."""
        runtime = self._runtime
        config = runtime.config
        assert config.interface is not None, "the process is started where it is configured"
        return self._start(
            AdminProcessConfig(
                config.name,
                config.group,
                start_number,
                runtime.unix_path,
                str(runtime.directory),
                config.interface,
                guarded=config.admin is not None,
                client_address=runtime.client_address,
                client_tls=_dialling(config.client_transports[0].tls),
                type_definitions=config.type_definitions,
                trace_directory=config.tracing.file_directory or "",
                log=config.log,
            )
        )

    def actions(self, start_number: int, secret: str) -> ChildHandle:
        """Starts the process that runs the instance's actions.

        Args:
            secret: password with which it logs on as a client.
        """
        runtime = self._runtime
        config = runtime.config
        own = (str(runtime.directory / JOURNAL_DIRECTORY), config.journal.archive_directory or "")
        return self._start(
            ActionRunnerConfig(
                config.name,
                config.group,
                start_number,
                runtime.unix_path,
                secret,
                str(runtime.directory),
                tuple(filter(None, own)),
                config.actions,
                sow_topics=tuple((each.name, each.message_type) for each in config.sow),
                seed_us=runtime.now_us(),
                type_definitions=config.type_definitions,
                log=config.log,
            )
        )


def _dialling(serving: TlsConfig | None) -> TlsConfig | None:
    """Returns the TLS settings with which a process of this host connects to a transport; None: the
    transport has no TLS."""
    if serving is None:
        return None
    # The process dials an address of its own host, for which the certificate need not be valid.
    own = replace(serving, verify_client=False, verify_name=False)
    return own if own.ca_file else replace(own, ca_file=own.certificate)
