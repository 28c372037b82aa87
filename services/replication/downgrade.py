"""The policy of downgrades: when an instance checks its sync destinations, and which it downgrades
or upgrades (seed: "Downgrading Acknowledgments for a Destination"; behaviour.md 1.8).

Pure: times are arguments, and the only state is when the next check is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from raylay.services.errors import ConfigurationError
from raylay.services.messages.units import AtLeast, Milliseconds
from raylay.services.replication.timetable import Occasion, Occasions, Timetable

CHECK_INTERVAL_MS_MIN = 10
FIRST_CONNECT_US_MAX = 5_000_000
"""Most time, in microseconds, for which the age of a destination waits for its link's first
connection of this life: links are processes, and instances that start together take seconds."""
FIRST_CONNECT_AGES_MAX = 10
"""The same, as a multiple of the age above which the destination is downgraded."""
Ages = tuple[int | None, int | None]
"""The ages of a check, in milliseconds: destinations are downgraded above the first, and upgraded
below the second; None: no destination is."""


@dataclass(frozen=True, slots=True)
class AgeCheck:
    """An additional check for destinations to downgrade or upgrade, on a schedule of its own.

    Attributes:
        age_ms: age in milliseconds above which a destination is downgraded; None: none
            is.
        upgrade_age_ms: age below which a destination is upgraded; None: none is.
        every: the occasions of the check.
        grace_period_ms: time after the start during which the check does nothing.
    """

    age_ms: Milliseconds | None = None
    upgrade_age_ms: Milliseconds | None = None
    every: Occasions = ()
    grace_period_ms: Milliseconds = 0

    def check(self) -> None:
        """Raises ConfigurationError where a value is wrong."""
        for name in ("age_ms", "upgrade_age_ms", "grace_period_ms"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigurationError(f"downgrade look: {name} is {value}: give 0 or more")
        if not self.every or any(not each.at and not each.every_ms for each in self.every):
            raise ConfigurationError("downgrade look: it has no schedule: give `every` or `at`")
        for each in self.every:
            each.check("downgrade look")


@dataclass(frozen=True, slots=True)
class DowngradePolicy:
    """Downgrade and upgrade by age, on a schedule, and downgrade by evidence.

    Attributes:
        age_ms: age of the oldest message that a destination has not answered, above which the
            destination is downgraded. None: never by age.
        upgrade_age_ms: age of that message below which a downgraded destination is upgraded. None:
            half of the downgrade age; 0: never by age.
        min_sync_destinations: no downgrade by age or by evidence below this number of destinations
            that use sync acknowledgment; by hand only when forced. It never causes an upgrade.
        every_ms: time between two checks for destinations to downgrade; 0: at each tick of the
            caller.
        upgrade_every_ms: time between two checks for destinations to upgrade; None: as `every_ms`.
        grace_period_ms: time after the start in which no destination is downgraded.
        upgrade_grace_period_ms: time after the start in which no destination is upgraded; None: as
            `grace_period_ms`.
        by_evidence: whether a destination is also downgraded, at once, when it is certain that its
            process has ended: its connection is lost and its addresses refuse connections. Without
            `age_ms` it never is.
        looks: further checks by age, each on a schedule of its own.
        check_interval_ms: time between two ticks of the caller.
    """

    age_ms: Milliseconds | None = None
    upgrade_age_ms: Milliseconds | None = None
    min_sync_destinations: Annotated[int, AtLeast(0)] = 0
    every_ms: Milliseconds = 0
    upgrade_every_ms: Milliseconds | None = None
    grace_period_ms: Milliseconds = 0
    upgrade_grace_period_ms: Milliseconds | None = None
    by_evidence: bool = True
    looks: tuple[AgeCheck, ...] = ()
    check_interval_ms: Annotated[Milliseconds, AtLeast(CHECK_INTERVAL_MS_MIN)] = 100

    def check(self) -> None:
        """Raises ConfigurationError where values do not fit together."""
        for name in (
            "min_sync_destinations",
            "every_ms",
            "upgrade_every_ms",
            "grace_period_ms",
            "upgrade_grace_period_ms",
            "age_ms",
            "upgrade_age_ms",
        ):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigurationError(f"downgrade policy: {name} is {value}: give 0 or more")
        for look in self.looks:
            look.check()
        downgrades = [self.age_ms, *(look.age_ms for look in self.looks)]
        upgrades = [self.upgrade_age_ms, *(look.upgrade_age_ms for look in self.looks)]
        lowest_ms = min((age for age in downgrades if age is not None), default=None)
        highest_ms = max((age for age in upgrades if age is not None), default=0)
        if lowest_ms is not None and highest_ms > lowest_ms:
            raise ConfigurationError(
                f"downgrade policy: upgrade age {highest_ms} ms is above downgrade age "
                f"{lowest_ms} ms: destinations would go up and down at each look; half "
                "of the downgrade age is usual"
            )

    @property
    def upgrades_below_ms(self) -> int | None:
        """The upgrade age in force; None: never by age."""
        if self.upgrade_age_ms is not None:
            return self.upgrade_age_ms or None
        return None if self.age_ms is None else self.age_ms // 2


def age_counts_from(oldest_us: int, began_us: int, connected_us: int | None, age_ms: int) -> int:
    """Returns the time from which the age of a destination counts, by the clock of the arguments:
    the later of its oldest unanswered message and its link's first connection in this life of the
    instance. A destination that does not come is waited for only for a limited time.

    Args:
        oldest_us: time of the oldest message that the destination has not answered.
        began_us: time at which the life began.
        connected_us: time of the first connection; None: there was none yet.
        age_ms: age above which the destination is downgraded.
    """
    limit_us = began_us + min(FIRST_CONNECT_US_MAX, FIRST_CONNECT_AGES_MAX * age_ms * 1000)
    first_us = limit_us if connected_us is None else min(connected_us, limit_us)
    return max(oldest_us, first_us)


class DowngradeSchedule:
    """The times at which one instance looks. Owner: its machine. Lifecycle: one start of the
    instance."""

    __slots__ = ("_began_us", "_looks", "_second", "policy")

    def __init__(self, policy: DowngradePolicy) -> None:
        self.policy = policy
        self._began_us: int | None = None
        """The time of the first check; None: there was none yet."""
        every_ms, grace_period_ms = policy.upgrade_every_ms, policy.upgrade_grace_period_ms
        own = (
            (policy.age_ms, None, policy.every_ms, policy.grace_period_ms),
            (
                None,
                policy.upgrades_below_ms,
                policy.every_ms if every_ms is None else every_ms,
                policy.grace_period_ms if grace_period_ms is None else grace_period_ms,
            ),
        )
        looks = [
            AgeCheck(downgrade_ms, upgrade_ms, (Occasion(each_ms),), grace_ms)
            for downgrade_ms, upgrade_ms, each_ms, grace_ms in own
        ]
        self._looks = [
            (look, [(when.at, Timetable(when, look.grace_period_ms)) for when in look.every])
            for look in (*looks, *policy.looks)
        ]
        self._second: list[AgeCheck] = []

    def due(self, now_us: int, wall_us: int | None = None) -> tuple[int | None, int | None]:
        """Returns two ages in milliseconds: destinations whose oldest unanswered message is older
        than the first are to be downgraded, downgraded ones for which it is younger than the second
        upgraded. None: not now.

        A look at a time of the day is followed by a second one at the next call: where the fault
        lies further on, the first one waits for the instance that is nearest to it, and not for a
        day.

        Args:
            now_us: time by the steady clock.
            wall_us: time by the wall clock; None: the same time.
        """
        if self._began_us is None:
            self._began_us = now_us
        again, self._second = self._second, []
        due = []
        for look, tables in self._looks:
            found = [
                at
                for at, table in tables
                if table.is_due(now_us, now_us if wall_us is None else wall_us)
            ]
            if found:
                due.append(look)
            if any(found):
                self._second.append(look)
        due += again
        return (
            min((d.age_ms for d in due if d.age_ms is not None), default=None),
            max((d.upgrade_age_ms for d in due if d.upgrade_age_ms is not None), default=None),
        )

    def acts_by_evidence(self, now_us: int) -> bool:
        """Returns whether a destination whose process has certainly ended is downgraded now."""
        policy = self.policy
        if not policy.by_evidence or policy.age_ms is None:
            return False
        began_us = now_us if self._began_us is None else self._began_us
        return now_us - began_us >= policy.grace_period_ms * 1000

    def refusal(self, destination: str, syncs: int) -> str:
        """Returns why one of `syncs` sync destinations may not be downgraded; empty when it may."""
        least = self.policy.min_sync_destinations
        if syncs > least:
            return ""
        return (
            f"{destination} is not downgraded: destinations with sync acknowledgment are {syncs}, "
            f"MinSyncDestinations is {least}; upgrade another one first, or force it"
        )
