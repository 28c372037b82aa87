"""The comparison of one SOW topic at two instances: the output of `raylay sow diff`.

A record counts by what brought it (publisher and sequence) and by its body. Instances take what is
published one after the other, so a first look finds what is on its way as well. So keys that differ
are looked at again: those that become equal are forgotten, and those that have changed in between
do not count as different, for nobody knows what the two looks saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raylay.services.messages.digests import SOW_BODY, digest


class HeldRecord(NamedTuple):
    """The record that an instance has under a key.

    Attributes:
        topic: of the message.
        digest: of its body, in hexadecimal.
    """

    topic: str
    publisher: int
    sequence: int
    digest: str

    def __str__(self) -> str:
        return f"{self.publisher}|{self.sequence}, body {self.digest}"


class RecordDifference(NamedTuple):
    """A key under which two instances have other things. None: that one has nothing.

    Attributes:
        changing: it was another difference when it was looked at before.
    """

    key: bytes
    here: HeldRecord | None
    there: HeldRecord | None
    changing: bool = False

    @property
    def what(self) -> str:
        """`missing here`, `missing there`, `other message`, or `other body` of the same one."""
        if self.here is None or self.there is None:
            return "missing here" if self.here is None else "missing there"
        return "other body" if self.here[:3] == self.there[:3] else "other message"


class TopicComparison:
    """Two instances' records of one topic.

    Owner: who compares. Lifecycle: one comparison. It keeps about 200 bytes of each record of the
    first instance, until the other one's have come.

    Attributes:
        counts: records of each in the first look.
    """

    def __init__(self) -> None:
        self.counts = [0, 0]
        self._here: dict[bytes, HeldRecord] = {}
        self._found: dict[bytes, RecordDifference] = {}
        self._seen: set[bytes] = set()
        """Keys that differ in this look."""
        self._looks = 0

    def first(self, key: bytes, held: HeldRecord) -> None:
        """A record of the first instance; all of them come before those of the second."""
        self._here[key] = held
        if not self._looks:
            self.counts[0] += 1

    def second(self, key: bytes, held: HeldRecord) -> None:
        """A record of the second instance."""
        if not self._looks:
            self.counts[1] += 1
        here = self._here.pop(key, None)
        if here != held:
            self._note(RecordDifference(key, here, held))

    def end(self) -> None:
        """One look is over: what of the first is left has nothing to compare with. Keys that were
        not found different this time are equal now."""
        for key, held in self._here.items():
            self._note(RecordDifference(key, held, None))
        self._here = {}
        self._looks += 1
        self._found = {key: each for key, each in self._found.items() if key in self._seen}
        self._seen = set()

    def _note(self, found: RecordDifference) -> None:
        before = self._found.get(found.key)
        changed = before is not None and (before.here, before.there) != (found.here, found.there)
        self._found[found.key] = found._replace(changing=changed)
        self._seen.add(found.key)

    @property
    def keys(self) -> list[bytes]:
        """Keys that differ, in order."""
        return sorted(self._found)

    def differences(self) -> Iterator[RecordDifference]:
        """The differences, by key."""
        return (self._found[key] for key in self.keys)


def digest_of(body: bytes) -> bytes:
    """Returns what tells a body from others: nobody can publish two that pass for one."""
    return digest(body, SOW_BODY)


def held(topic: str, publisher: int, sequence: int, body: bytes) -> HeldRecord:
    """Returns the record under a key, of a row of a query."""
    return HeldRecord(topic, publisher, sequence, digest_of(body).hex())


def differ(found: Iterable[RecordDifference]) -> bool:
    """Returns whether any of them is no change that was under way."""
    return any(not each.changing for each in found)
