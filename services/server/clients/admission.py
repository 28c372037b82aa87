"""The decision whether an instance admits clients now, and the reason where it does not."""

from __future__ import annotations

from raylay.services.config.actions import ACTIONS_TRANSPORT
from raylay.services.core.commit_cycle import CommitCycle
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime


class ClientAdmission:
    """The decision whether clients may log on now. Reads the state of the instance and changes
    nothing.

    Owner: the instance's event loop.

    Args:
        is_restored: whether the data directory was a copy that had not caught up with its peers
            when the instance started.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        commits: CommitCycle,
        *,
        is_restored: bool,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._commits = commits
        self._is_restored = is_restored
        self._is_held = False

    def hold(self) -> None:
        """Admits no client but that of the actions, until `release`."""
        self._is_held = True

    def release(self) -> None:
        """Admits clients, after a `hold`."""
        self._is_held = False

    def refusal(self, transport: str = "") -> tuple[str, str] | None:
        """Returns why no client is admitted now, as a reason and a sentence; None: clients are
        admitted.

        Args:
            transport: name of the transport that the client comes by.
        """
        runtime = self._runtime
        if runtime.retirement or runtime.is_stopping or not runtime.is_serving:
            return unserved(runtime)
        if self._instance.machine.went_back:
            return "not_ready", self._instance.machine.went_back
        if not self._instance.machine.ready:
            return "not_ready", self._why_not_ready()
        if self._is_held and transport != ACTIONS_TRANSPORT:
            return "not_ready", f"{runtime.config.name} waits until its actions have subscribed"
        return None

    def reason(self) -> str:
        """The reason why the instance is not ready; empty: it is ready."""
        if self._commits.failure is not None:
            return self._commits.failure[1]
        refusal = self.refusal()
        return refusal[1] if refusal is not None else ""

    def _why_not_ready(self) -> str:
        config = self._runtime.config
        group = config.group
        peers = [name for name, of, _ in self._instance.machine.upstreams() if of == group]
        why = "its data directory is a copy: " if self._is_restored else ""
        if peers:
            return f"{why}{config.name} catches up with {', '.join(peers)} of group {group}"
        return (
            f"{why}{config.name} waits to catch up with a peer of group {group}, and none has "
            "connected: one must be up and replicate to it, by a Destination of its own where it "
            f"stands only behind others of a failover list; where none will, `raylay admit "
            f"{config.name}`"
        )


def unserved(runtime: InstanceRuntime) -> tuple[str, str]:
    """Returns why an instance that does not serve admits no client, as a reason and a sentence."""
    if runtime.retirement:
        return "retired", runtime.retirement
    if runtime.is_stopping:
        return "shutting_down", f"{runtime.config.name} stops"
    return "not_ready", f"{runtime.config.name} is {runtime.phase}"
