"""The digest of what an instance holds, kept up with what changes.

Each logon of a link begins with it. Taken anew over 100,000 publishers it takes half a second; from
one logon to the next few publishers change.
"""

from __future__ import annotations

from collections.abc import Iterator

from raylay.services.messages.digests import summed
from raylay.services.messages.ranges import PublisherRanges, digest_of

SLICE_PUBLISHERS = 1_000
"""About 2 ms of work."""


class RunningDigest:
    """The digest of what an instance holds.

    Owner: an instance's event loop. Lifecycle: one life of the instance.

    Invariant: `value` is the digest of the sets that were worked off last.
    """

    def __init__(self) -> None:
        self._sum = 0
        self._of = PublisherRanges()
        self.value = self._of.digest()

    def work(
        self, sets: PublisherRanges, slice_publishers: int = SLICE_PUBLISHERS
    ) -> Iterator[None]:
        """Takes the digest of these, a slice at a time. One at a time; one that is given up
        changes nothing.

        Args:
            sets: a copy, which nobody changes.
        """
        before, total = self._of, self._sum
        for number, publisher in enumerate(sets.changed_since(before), 1):
            total += digest_of(publisher, sets.get(publisher))
            total -= digest_of(publisher, before.get(publisher))
            if not number % slice_publishers:
                yield
        self._of, self._sum, self.value = sets, total, summed(total)
