"""When an instance looks at its sync destinations, and which it downgrades or upgrades
(seed: "Downgrading Acknowledgments for a Destination"; behaviour.md 1.8).

Pure: times are given, nothing is kept but when the next look is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylay.services.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class DowngradePolicy:
    """Downgrade and upgrade by age, on a schedule.

    Attributes:
        downgrade_age_ms: of the oldest message that a destination has not answered; older, and it
            is downgraded. None: never by age.
        upgrade_age_ms: a downgraded destination whose oldest one is younger is upgraded. None: half
            of the downgrade age; 0: never by age.
        min_sync_destinations: no downgrade by age below this number of destinations that use sync
            acknowledgment; by hand only when forced. It never causes an upgrade.
        every_ms: between two looks for what is to be downgraded; 0: as often as the caller ticks.
        upgrade_every_ms: for what is to be upgraded; None: as `every_ms`.
        grace_period_ms: after the start nothing is downgraded for so long.
        upgrade_grace_period_ms: nothing is upgraded; None: as `grace_period_ms`.
    """

    downgrade_age_ms: int | None = None
    upgrade_age_ms: int | None = None
    min_sync_destinations: int = 0
    every_ms: int = 0
    upgrade_every_ms: int | None = None
    grace_period_ms: int = 0
    upgrade_grace_period_ms: int | None = None

    def check(self) -> None:
        """Raises ConfigurationError where values do not fit together."""
        for name in (
            "min_sync_destinations",
            "every_ms",
            "upgrade_every_ms",
            "grace_period_ms",
            "upgrade_grace_period_ms",
            "downgrade_age_ms",
            "upgrade_age_ms",
        ):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigurationError(f"downgrade policy: {name} is {value}: give 0 or more")
        if (
            self.downgrade_age_ms is not None
            and self.upgrade_age_ms is not None
            and self.upgrade_age_ms > self.downgrade_age_ms
        ):
            raise ConfigurationError(
                f"downgrade policy: upgrade age {self.upgrade_age_ms} ms is above downgrade age "
                f"{self.downgrade_age_ms} ms: destinations would go up and down at each look; half "
                "of the downgrade age is usual"
            )

    @property
    def upgrades_below_ms(self) -> int | None:
        """The upgrade age in force; None: never by age."""
        if self.upgrade_age_ms is not None:
            return self.upgrade_age_ms or None
        return None if self.downgrade_age_ms is None else self.downgrade_age_ms // 2


class _Schedule:
    """Due times of one action: the first behind the grace period, then one an interval. A look that
    comes late is not made up for, and a clock that was set back makes the next one due at once."""

    __slots__ = ("_due_us", "_every_us", "_grace_us", "_last_us")

    def __init__(self, every_ms: int, grace_period_ms: int) -> None:
        self._every_us = every_ms * 1000
        self._grace_us = grace_period_ms * 1000
        self._due_us: int | None = None
        self._last_us = 0

    def is_due(self, now_us: int) -> bool:
        """Whether it is time; the first call is the start."""
        set_back = now_us < self._last_us
        self._last_us = now_us
        if self._due_us is None:
            # In the grace period nothing; without one, an interval after the start as ever after.
            self._due_us = now_us + max(self._grace_us, self._every_us)
            return self._due_us == now_us
        if set_back:
            self._due_us = min(self._due_us, now_us + self._every_us)
        if now_us < self._due_us:
            return False
        self._due_us = now_us + self._every_us
        return True


class DowngradeSchedule:
    """When to look, for one instance. Owner: its machine. Lifecycle: one start of the instance."""

    __slots__ = ("_downgrade", "_upgrade", "policy")

    def __init__(self, policy: DowngradePolicy) -> None:
        self.policy = policy
        self._downgrade = _Schedule(policy.every_ms, policy.grace_period_ms)
        every_ms, grace_period_ms = policy.upgrade_every_ms, policy.upgrade_grace_period_ms
        self._upgrade = _Schedule(
            policy.every_ms if every_ms is None else every_ms,
            policy.grace_period_ms if grace_period_ms is None else grace_period_ms,
        )

    def due(self, now_us: int) -> tuple[int | None, int | None]:
        """(downgrade what is older, upgrade what is younger), in milliseconds; None: not now."""
        downgrade = self._downgrade.is_due(now_us)
        upgrade = self._upgrade.is_due(now_us)
        return (
            self.policy.downgrade_age_ms if downgrade else None,
            self.policy.upgrades_below_ms if upgrade else None,
        )

    def refusal(self, destination: str, syncs: int) -> str:
        """Why one of `syncs` sync destinations may not be downgraded; empty when it may."""
        least = self.policy.min_sync_destinations
        if syncs > least:
            return ""
        return (
            f"{destination} is not downgraded: destinations with sync acknowledgment are {syncs}, "
            f"MinSyncDestinations is {least}; upgrade another one first, or force it"
        )
