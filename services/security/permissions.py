"""The permissions document of a user, and the rights that it gives on a topic.

    {"logon": true, "replication-logon": false,
     "topic": [{"topic": "orders", "read": "/desk = 'fx'", "write": true, "select": "-/,+/id,+/px"},
               {"topic": "prices/.*", "read": true}],
     "replicated-topics": [{"topic": ".*", "write": true}],
     "admin": [{"topic": "/amps/.*", "read": true}]}

The first entry whose topic fits says all that is said of a topic: what it does not name is not
allowed, and where none fits nothing is. `read` and `write` are true, false, or a content filter:
then only what it passes. A topic is a name, or a regular expression for the *whole* name: a
subscription's pattern looks for a place, but who is allowed `orders` is not meant to read
`my-orders-too`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from raylay.services.errors import ConfigurationError
from raylay.services.messages.topic_pattern import PatternError, TopicPattern
from raylay.services.messages.topics import is_regex

ENTRIES_MAX = 10_000
ENTRIES_COMPARED_MAX = 1_000
"""Most entries of a list in which dead entries are looked for. To compare 40 entries with one
another takes a millisecond, and this many half a second."""
TEXT_CHARACTERS_MAX = 16_384
ANSWERS_KEPT_MAX = 4_096
"""Number of answers of each kind that are kept. A session chooses the topics, of up to 1,024 bytes
each, and there may be many sessions."""
_KEYS = frozenset(
    (
        "logon",
        "replication-logon",
        "client-names",
        "topic",
        "replicated-topics",
        "admin",
        "user_name",
    )
)
_LISTS = ("topic", "replicated-topics", "admin")
_ENTRY_KEYS = frozenset(("topic", "read", "write", "select"))


class Grant(NamedTuple):
    """The rights on a topic.

    Attributes:
        allowed: whether any access is allowed.
        filter: content filter of the accessible messages; empty: all.
        select: fields that may be read; empty: all.
    """

    allowed: bool
    filter: str = ""
    select: str = ""

    @property
    def is_whole(self) -> bool:
        return self.allowed and not self.filter and not self.select


DENIED = Grant(False)
ALLOWED = Grant(True)


class PermissionEntry(NamedTuple):
    """One line of a document.

    Attributes:
        topic: topic as written.
        pattern: expression for whole names; None: the topic is a name.
        select: fields that may be read.
    """

    topic: str
    pattern: TopicPattern | None
    read: Grant
    write: Grant

    def fits(self, topic: str) -> bool:
        return self.topic == topic if self.pattern is None else self.pattern.search(topic)

    def covers(self, other: PermissionEntry) -> bool:
        """Returns whether this entry fits every topic that another entry fits. Two different
        expressions are not compared: the result is then false, unless this one is `.*`."""
        if other.pattern is None:
            return self.fits(other.topic)
        return self.topic in (other.topic, ".*")


class Permissions:
    """The permissions of one user. Immutable.

    Owner: the session. Answers are kept per topic, so a run costs a look-up.

    Args:
        logon: whether the user may log on as a client.
        replication_logon: whether the user may log on as a link of another instance.
        topics, replicated, admin: entries in the order of the document.
        client_names: client names that the user may use; none: any.
        user_name: name by which the user is known from then on; empty: unchanged.
    """

    __slots__ = (
        "__weakref__",
        "_copies",
        "_reads",
        "_replicates",
        "_writes",
        "admin",
        "client_names",
        "logon",
        "replicated",
        "replication_logon",
        "topics",
        "user_name",
    )

    def __init__(
        self,
        *,
        logon: bool = False,
        replication_logon: bool = False,
        topics: Iterable[PermissionEntry] = (),
        replicated: Iterable[PermissionEntry] = (),
        admin: Iterable[PermissionEntry] = (),
        user_name: str = "",
        client_names: Iterable[PermissionEntry] = (),
    ) -> None:
        self.logon = logon
        self.replication_logon = replication_logon
        self.topics = tuple(topics)
        self.replicated = tuple(replicated)
        self.admin = tuple(admin)
        self.user_name = user_name
        self.client_names = tuple(client_names)
        self._reads: dict[bytes, Grant] = {}
        self._writes: dict[bytes, Grant] = {}
        self._replicates: dict[bytes, Grant] = {}
        self._copies: dict[bytes, Grant] = {}

    def may_be(self, client_name: str) -> bool:
        """Returns whether the user may log on by this client name. Publishers are known by that
        name alone, so a client with another's name could use up its sequences."""
        return not self.client_names or any(each.fits(client_name) for each in self.client_names)

    def read(self, topic: bytes) -> Grant:
        """Returns what may be read of a topic or a queue. A user who may read a queue may
        acknowledge its messages."""
        found = self._reads.get(topic)
        return found if found is not None else self._look(self._reads, self.topics, topic, True)

    def write(self, topic: bytes) -> Grant:
        """Returns what may be published to a topic, or deleted from it."""
        found = self._writes.get(topic)
        return found if found is not None else self._look(self._writes, self.topics, topic, False)

    @property
    def restricts_rows(self) -> bool:
        """Returns whether there are topics of which only some messages may be read, with all of
        their fields."""
        return any(each.read.filter and not each.read.select for each in self.topics)

    def replicates(self, topic: bytes) -> bool:
        """Returns whether a link may bring messages of this topic."""
        found = self._replicates.get(topic)
        if found is None:
            found = self._look(self._replicates, self.replicated, topic, False)
        return found.allowed

    @property
    def replicates_all(self) -> bool:
        """Returns whether a link may bring messages of every topic: the first entry, which decides,
        is `.*`."""
        first = self.replicated[0] if self.replicated else None
        return first is not None and first.topic == ".*" and first.write.allowed

    def copies(self, topic: bytes) -> bool:
        """Returns whether an instance may copy messages of this topic: it may have what it may
        bring."""
        found = self._copies.get(topic)
        if found is None:
            found = self._look(self._copies, self.replicated, topic, True)
        return found.allowed or self.replicates(topic)

    def controls(self, path: str) -> bool:
        """Returns whether the user may make the control call with this path. Only `read: true`
        allows it: filters mean nothing here."""
        for entry in self.admin:
            if entry.fits(path):
                return entry.read.is_whole
        return False

    def dead_entries(self) -> list[str]:
        """Returns a sentence on each entry that never applies, because an earlier entry of its list
        fits every topic that it fits (`PermissionEntry.covers`)."""
        found = []
        for key, entries in zip(_LISTS, (self.topics, self.replicated, self.admin), strict=True):
            if len(entries) > ENTRIES_COMPARED_MAX:
                continue
            for at, entry in enumerate(entries):
                earlier = next((each for each in entries[:at] if each.covers(entry)), None)
                if earlier is not None:
                    found.append(
                        f"{key}[{at}]: the entry of {entry.topic[:200]!r} never applies, because "
                        f"the one of {earlier.topic[:200]!r} stands before it and fits it: put it "
                        "first, or remove it"
                    )
        return found

    def _look(
        self,
        kept: dict[bytes, Grant],
        entries: tuple[PermissionEntry, ...],
        topic: bytes,
        reads: bool,
    ) -> Grant:
        text = topic.decode("utf-8", "surrogateescape")
        found = DENIED
        for entry in entries:
            if entry.fits(text):
                found = entry.read if reads else entry.write
                break
        if len(kept) >= ANSWERS_KEPT_MAX:
            kept.clear()
        kept[topic] = found
        return found


EVERYTHING = Permissions(
    logon=True,
    replication_logon=True,
    topics=(PermissionEntry(".*", TopicPattern("(?s).*"), ALLOWED, ALLOWED),),
    replicated=(PermissionEntry(".*", TopicPattern("(?s).*"), ALLOWED, ALLOWED),),
    admin=(PermissionEntry(".*", TopicPattern("(?s).*"), ALLOWED, ALLOWED),),
)
NOTHING = Permissions()


def read_permissions(document: object, where: str) -> Permissions:
    """Reads a document from a module or a file.

    Args:
        where: the source of the document, for errors.

    Raises:
        ConfigurationError: it is none. It says where, and what is wrong: what is not understood
            in a document about permissions must not be passed over.
    """
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{where}: permissions are no map of logon, topic, …")
    unknown = sorted(str(key) for key in document if key not in _KEYS)
    if unknown:
        raise ConfigurationError(
            f"{where}: permissions have no {unknown[0]!r}: there are {', '.join(sorted(_KEYS))}"
        )
    user_name = document.get("user_name", "")
    if not isinstance(user_name, str):
        raise ConfigurationError(f"{where}: user_name is no text")
    topics, replicated, admin = (_entries(document, key, where) for key in _LISTS)
    names = document.get("client-names", [])
    if not isinstance(names, list) or len(names) > ENTRIES_MAX:
        raise ConfigurationError(
            f"{where}: client-names is no list of at most {ENTRIES_MAX} names or expressions"
        )
    return Permissions(
        logon=_truth(document.get("logon", False), f"{where}: logon"),
        replication_logon=_truth(
            document.get("replication-logon", False), f"{where}: replication-logon"
        ),
        topics=topics,
        replicated=replicated,
        admin=admin,
        user_name=user_name,
        client_names=[
            _entry({"topic": each}, f"{where}: client-names[{at}]") for at, each in enumerate(names)
        ],
    )


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        # A file may describe a list larger than memory, by aliases of aliases.
        is_small = isinstance(value, int) and value.bit_length() < 64
        shown = f"a {type(value).__name__}"
        if isinstance(value, str) or is_small:
            shown = repr(value)[:200]
        raise ConfigurationError(f"{where} is {shown}: give true or false")
    return value


def _entries(document: Mapping[Any, Any], key: str, where: str) -> list[PermissionEntry]:
    given = document.get(key, [])
    if not isinstance(given, list) or len(given) > ENTRIES_MAX:
        raise ConfigurationError(f"{where}: {key} is no list of at most {ENTRIES_MAX} entries")
    return [_entry(value, f"{where}: {key}[{at}]") for at, value in enumerate(given)]


def _entry(value: object, where: str) -> PermissionEntry:
    if not isinstance(value, Mapping) or not isinstance(value.get("topic"), str):
        raise ConfigurationError(f"{where} names no topic: give topic, and read or write")
    unknown = sorted(str(key) for key in value if key not in _ENTRY_KEYS)
    if unknown:
        raise ConfigurationError(
            f"{where} has {unknown[0]!r}: there are topic, read, write and select"
        )
    topic, select = value["topic"], value.get("select", "")
    if not topic or len(topic) > TEXT_CHARACTERS_MAX:
        raise ConfigurationError(f"{where} has an empty topic, or one that is too long")
    if not isinstance(select, str) or len(select) > TEXT_CHARACTERS_MAX:
        raise ConfigurationError(f"{where}: select is no text")
    pattern = None
    if is_regex(topic):
        try:
            pattern = TopicPattern(rf"^(?:{topic})$")
        except PatternError as error:
            raise ConfigurationError(f"{where}: topic {topic[:200]!r}: {error}") from None
    read = _grant(value.get("read", False), f"{where}: read")
    if select and read.allowed:
        read = read._replace(select=select)
    return PermissionEntry(
        topic, pattern, read, _grant(value.get("write", False), f"{where}: write")
    )


def _grant(value: object, where: str) -> Grant:
    if isinstance(value, bool):
        return ALLOWED if value else DENIED
    if isinstance(value, str) and 0 < len(value) <= TEXT_CHARACTERS_MAX:
        return Grant(True, value)
    raise ConfigurationError(f"{where} is no true, no false and no content filter")


def restricted(filter_: str, grant: Grant) -> str:
    """Returns a filter for a user's read, combined with the filter of the permissions: both must
    pass.

    Args:
        filter_: a filter that was parsed by itself before. A text that is only valid between
            parentheses could close them, and add a condition of its own.
    """
    if not grant.filter:
        return filter_
    return f"({grant.filter}) AND ({filter_})" if filter_ else grant.filter


def unrestricted(filter_: str, restriction: str) -> str:
    """Returns the part of a combined filter that the user wrote: see `restricted`.

    Args:
        restriction: the filter of the permissions; empty: they have none.
    """
    if filter_ == restriction:
        return ""
    before = f"({restriction}) AND ("
    if restriction and filter_.startswith(before):
        return filter_[len(before) : -1]
    return filter_
