"""The comparison of one SOW topic at two instances: the output of `raylay sow diff`.

A record is compared by the message that brought it (publisher and sequence) and by its body.
Instances process a publish one after the other, so a first look also finds differences that are
under way. So differing keys are looked at again: those that have become equal are dropped, and
those that have changed in between do not count as different, because the two looks were not at the
same moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raylay.services.messages.digests import SOW_BODY, digest


class HeldRecord(NamedTuple):
    """The record that an instance has under a key.

    Attributes:
        topic: topic of the message.
        digest: digest of the message's body, in hexadecimal.
    """

    topic: str
    publisher: int
    sequence: int
    digest: str

    def __str__(self) -> str:
        return f"{self.publisher}|{self.sequence}, body {self.digest}"


class RecordDifference(NamedTuple):
    """A key whose records differ at two instances. None stands for no record.

    Attributes:
        changing: whether the difference was another one at the previous look.
    """

    key: bytes
    here: HeldRecord | None
    there: HeldRecord | None
    changing: bool = False

    @property
    def what(self) -> str:
        """Returns `missing here`, `missing there`, `other message`, or `other body` of the same
        message."""
        if self.here is None or self.there is None:
            return "missing here" if self.here is None else "missing there"
        return "other body" if self.here[:3] == self.there[:3] else "other message"


class TopicComparison:
    """The comparison of two instances' records of one topic.

    Owner: the caller that compares. Lifecycle: one comparison. About 200 bytes are kept for each
    record of the first instance, until those of the second one have come.

    Attributes:
        counts: number of records of each instance in the first look.
    """

    def __init__(self) -> None:
        self.counts = [0, 0]
        self._here: dict[bytes, HeldRecord] = {}
        self._found: dict[bytes, RecordDifference] = {}
        self._seen: set[bytes] = set()
        """Keys that differ in the present look."""
        self._looks = 0

    def first(self, key: bytes, held: HeldRecord) -> None:
        """Takes a record of the first instance; all of them come before those of the second one."""
        self._here[key] = held
        if not self._looks:
            self.counts[0] += 1

    def second(self, key: bytes, held: HeldRecord) -> None:
        """Takes a record of the second instance."""
        if not self._looks:
            self.counts[1] += 1
        here = self._here.pop(key, None)
        if here != held:
            self._note(RecordDifference(key, here, held))

    def end(self) -> None:
        """Ends a look: the first instance's remaining records have no counterpart. Keys that were
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
        """Returns the keys that differ, in order."""
        return sorted(self._found)

    def differences(self) -> Iterator[RecordDifference]:
        return (self._found[key] for key in self.keys)


def digest_of(body: bytes) -> bytes:
    """Returns a digest of a body; two bodies with one digest cannot be made."""
    return digest(body, SOW_BODY)


def held(topic: str, publisher: int, sequence: int, body: bytes) -> HeldRecord:
    """Returns the record under a key, from the values of a query's row."""
    return HeldRecord(topic, publisher, sequence, digest_of(body).hex())


def differ(found: Iterable[RecordDifference]) -> bool:
    """Returns whether any of these differences is certain, not one that may have been under way."""
    return any(not each.changing for each in found)
