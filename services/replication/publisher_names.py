"""The client name that each publisher id belongs to.

A publisher id is 64 bits of a digest of a client name. An attacker who tries long enough finds a
name with the id of one of many clients, and would publish as that client. So an instance remembers
a second, independent digest of 128 bits of the name that first published under each id, and refuses
another name of that id when it logs on. Links tell one another what they remember, so an instance
knows the names of clients that never logged on to it. A name has no entry before it publishes:
subscribers would cost memory for nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.digests import (
    DIGEST_BYTES,
    PUBLISHER_NAME,
    PUBLISHER_NAMES,
    digest,
    summand,
    summed,
)

NAMES_MAX = 2_000_000
"""The names that are remembered: 300 MB of memory, 330 MB of the state, which holds 1 GiB. The ids
of later ones are not checked."""
NAMES_AT_ONCE = 512
"""Names in one frame of a link, which the receiver reads in a millisecond or two."""
PARTS_AT_ONCE = 4
"""Frames that a link is given at each check: a million names take a minute or so."""
NO_CLIENT = bytes(DIGEST_BYTES)
"""Stands in place of a name's digest where an instance numbers under the id: no client has it."""
PUBLISHER_CONFLICT = "publisher_conflict"

_ENTRY = struct.Struct(f"<Q{DIGEST_BYTES}s")


def name_digest(client_name: str) -> bytes:
    """The digest by which a client name is told from others of its publisher id."""
    return digest(client_name.encode("utf-8", "surrogatepass"), PUBLISHER_NAME)


def read_names(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The publisher ids and digests of a frame of `PublisherNames.part`.

    Raises:
        RemoteProtocolError: it is none; with reason `bad_names`.
    """
    if len(body) % _ENTRY.size or len(body) > NAMES_AT_ONCE * _ENTRY.size:
        raise RemoteProtocolError(
            f"names of publishers have {len(body):,} bytes: {_ENTRY.size} for each of at most "
            f"{NAMES_AT_ONCE}",
            "bad_names",
        )
    return _ENTRY.iter_unpack(body)


class PublisherNames:
    """See the file's docstring.

    Invariant: an id's first digest stays, for as long as the data directory.
    Owner: the instance's machine. Lifecycle: as long as that.

    Args:
        remembered: the ids and digests that earlier processes wrote down.

    Attributes:
        unwritten: ids of names that are still to be written down. The code that writes them down
            clears it.
    """

    __slots__ = ("_digests", "_order", "_sum", "unwritten")

    def __init__(self, remembered: Iterable[tuple[int, bytes]] = ()) -> None:
        self._digests: dict[int, bytes] = {}
        self._order: list[int] = []
        self._sum = 0
        self.unwritten: list[int] = []
        for publisher, found in remembered:
            self._add(publisher, found)

    def __len__(self) -> int:
        return len(self._order)

    def get(self, publisher: int) -> bytes | None:
        """The digest of the name that has this id; None: no known name has it."""
        return self._digests.get(publisher)

    def items(self) -> Iterable[tuple[int, bytes]]:
        """All ids, each with the digest of the name that has it."""
        return self._digests.items()

    def claim(self, publisher: int, name: bytes) -> bool:
        """A name publishes under its id. Returns whether the id belongs to no other name."""
        held = self._digests.get(publisher)
        if held is not None:
            return held == name
        if len(self._order) < NAMES_MAX:
            self._add(publisher, name)
            self.unwritten.append(publisher)
        return True

    def _add(self, publisher: int, name: bytes) -> None:
        self._digests[publisher] = name
        self._order.append(publisher)
        self._sum += summand(_ENTRY.pack(publisher, name), PUBLISHER_NAMES)

    @property
    def digest(self) -> bytes:
        """The digest of all that is remembered, whatever the order in which it came."""
        return summed(self._sum)

    def part(self, position: int) -> bytes:
        """The next `NAMES_AT_ONCE` names behind so many, for another instance; nothing: these were
        all."""
        digests = self._digests
        stretch = self._order[position : position + NAMES_AT_ONCE]
        return b"".join(_ENTRY.pack(each, digests[each]) for each in stretch)


class NamesTold:
    """Position up to which a link's destination has been told the names that are remembered here.

    Owner: the instance, one for each destination. Lifecycle: as long as the instance.
    """

    __slots__ = ("_names", "_position")

    def __init__(self, names: PublisherNames) -> None:
        self._names = names
        self._position: int | None = None
        """Position up to which the destination has the names or was sent them; None: it takes
        none."""

    def connected(self, digest: bytes) -> None:
        """A link has connected.

        Args:
            digest: digest of the names that the destination remembers; empty: the destination
                believes no names from this instance.
        """
        is_same = digest == self._names.digest
        self._position = (len(self._names) if is_same else 0) if digest else None

    def disconnected(self) -> None:
        """The link has lost its destination: what was on its way may be lost."""
        self._position = None

    @property
    def is_behind(self) -> bool:
        return self._position is not None and self._position < len(self._names)

    def go_on(self, say: Callable[[bytes], bool]) -> None:
        """Sends some of the names that the destination was not sent yet.

        Args:
            say: whether this part goes out, over the connection that is there now.
        """
        for _ in range(PARTS_AT_ONCE):
            if self._position is None:
                return
            part = self._names.part(self._position)
            if not part or not say(part):
                return
            self._position += len(part) // _ENTRY.size
