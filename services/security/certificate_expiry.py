"""The dates of certificates: which of them are to be warned of, and when.

A certificate is warned of when it ends within 30, 7 and 1 days, and when it has ended, once each.
After a restart the last of these warnings comes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

DAY_US = 86_400_000_000
WARNED_DAYS = (1, 7, 30)
"""Days before its end at which a certificate is warned of, ascending."""
ENDED = 0
NEVER = WARNED_DAYS[-1] + 1
"""Number in place of the days for a certificate that is not to be warned of yet."""
CLIENT_CERTIFICATES_MAX = 100
"""Most certificates of clients that are reported: those that end first."""
USERS_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class DatedCertificate:
    """A certificate of a file, or one that clients show, and its end.

    Attributes:
        file: path of the file; empty: clients show it.
        name: common name of the subject, or else its number in the file.
        is_authority: whether the file is one of CAs, by which others' certificates are verified.
        used_by: transports, destinations or interfaces that use the file, or clients that show it.
        ends_us: the last moment of its validity, in microseconds since the epoch.
    """

    file: str
    name: str
    is_authority: bool
    used_by: tuple[str, ...]
    ends_us: int

    def left_us(self, now_us: int) -> int:
        """Returns the microseconds until it ends; below 0: it has ended."""
        return self.ends_us - now_us

    def days(self, now_us: int) -> int:
        """Returns the lowest number of `WARNED_DAYS` within which it ends; `ENDED`: it has ended;
        `NEVER`: it lasts longer."""
        left_us = self.left_us(now_us)
        if left_us <= 0:
            return ENDED
        return next((days for days in WARNED_DAYS if left_us <= days * DAY_US), NEVER)

    def text(self, now_us: int) -> str:
        """Returns a sentence on its end, with what to do."""
        kind = "the CA" if self.is_authority else "the certificate"
        moment = datetime.fromtimestamp(min(self.ends_us, 253_402_300_799_000_000) / 1e6, UTC)
        date = f"{moment:%F %H:%M} UTC"
        left_us = self.left_us(now_us)
        days = left_us // DAY_US
        if left_us <= 0:
            when = f"has ended on {date}"
        elif not days:
            when = f"ends in less than a day, on {date}"
        else:
            when = f"ends in {days} day{'' if days == 1 else 's'}, on {date}"
        todo = "renew it"
        if not self.file:
            return (
                f"{kind} {self.name} that {', '.join(self.used_by)} showed {when}: {todo} where "
                "they run, and let them connect again"
            )
        if self.is_authority:
            when = f"{when}, and with it every certificate that it signed"
            todo = "make another CA, and trust both while certificates are renewed"
        return (
            f"{kind} {self.name} in {self.file} ({', '.join(self.used_by)}) {when}: {todo}; new "
            "files are used without a restart"
        )

    def status(self, now_us: int) -> dict[str, Any]:
        """Returns the entry of the instance's status."""
        return {
            "file": self.file,
            "name": self.name,
            "authority": self.is_authority,
            "used_by": list(self.used_by),
            "ends_us": self.ends_us,
            "warning": self.text(now_us) if self.days(now_us) < NEVER else "",
        }


def ending_of_clients(shown: Iterable[tuple[str, str, int]], now_us: int) -> list[DatedCertificate]:
    """Returns the certificates of clients that need a warning, in the order of their ends.

    Args:
        shown: the name of each client, and the name and the end of the certificate that it showed.
    """
    users: dict[tuple[int, str], list[str]] = {}
    for client, name, ends_us in shown:
        if ends_us - now_us <= WARNED_DAYS[-1] * DAY_US:
            users.setdefault((ends_us, name), []).append(client)
    found: list[DatedCertificate] = []
    for (ends_us, name), clients in sorted(users.items())[:CLIENT_CERTIFICATES_MAX]:
        named = [f"client {each}" for each in sorted(clients)[:USERS_SHOWN_MAX]]
        if len(clients) > USERS_SHOWN_MAX:
            named.append(f"{len(clients) - USERS_SHOWN_MAX} more")
        found.append(DatedCertificate("", name, False, tuple(named), ends_us))
    return found


class ExpiryWarnings:
    """Decides which certificates are to be warned of.

    Owner: whoever asks, one at a time.
    """

    def __init__(self) -> None:
        self._warned: dict[tuple[str, str, int], int] = {}
        """The days of the last warning by file, name and end: a renewed certificate is another
        one."""

    def due(self, certificates: Iterable[DatedCertificate], now_us: int) -> list[DatedCertificate]:
        """Returns the certificates of which nobody was warned since they came that near to their
        end."""
        found: list[DatedCertificate] = []
        # A client that connects again shows a certificate for which the warning was given.
        warned = {
            key: days for key, days in self._warned.items() if days < NEVER and key[2] >= now_us
        }
        for each in certificates:
            key = (each.file, each.name, each.ends_us)
            days = each.days(now_us)
            before = min(self._warned.get(key, NEVER), warned.get(key, NEVER))
            if days < before:
                found.append(each)
            # A clock that is set back causes no second warning.
            warned[key] = min(days, before)
        self._warned = warned
        return found
