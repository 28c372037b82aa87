"""Checks of an AMPSConfig that need more than one stanza. Values in, values out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from raylay.services.configuration.amps.actions import problems_of
from raylay.services.configuration.amps.message_types import definition, problem, unsupported
from raylay.services.configuration.amps.model import AmpsConfig, DestinationStanza, LogTopic
from raylay.services.configuration.amps.queues import queue_texts
from raylay.services.configuration.amps.sow import (
    ConflatedTopicStanza,
    Queue,
    SowStanza,
    SowTopicStanza,
    ViewStanza,
)
from raylay.services.configuration.amps.sow_topics import topic_problems
from raylay.services.configuration.amps.tree import VERSION
from raylay.services.configuration.amps.types import ModuleUse, split_listen_address
from raylay.services.configuration.amps.views import view_texts
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import (
    TopicMatcher,
    TopicRule,
    is_regex,
)
from raylay.services.messages.types.definitions import KIND_NAMES, TypeDefinition
from raylay.services.plugins.filters import filter_problem
from raylay.services.replication.link.routing import SYNC_DESTINATIONS_MAX

Path = tuple[str | int, ...]
Problem = tuple[Path, str]
_Definition = SowTopicStanza | ViewStanza | ConflatedTopicStanza | Queue
BUILT_IN_MODULES = frozenset(
    (
        "amps-default-authentication-module",
        "amps-implicit-authentication-module",
        "amps-default-no-authentication-module",
        "amps-default-entitlement-module",
        "amps-default-no-entitlement-module",
        "amps-default-authenticator-module",
    )
)
BUILT_IN_FILTERS = frozenset(("amps-topic-translator", "amps-conflated-topic-translator"))


def problems(config: AmpsConfig) -> list[Problem]:
    """Returns the place and the text of everything that is wrong, in the order of the stanzas."""
    found = list(_version(config))
    found += _transports(config)
    found += _destinations(config)
    if config.bootstrap is not None and not any(
        transport.inet_addresses for transport in config.bootstrap.transports
    ):
        found.append(
            (
                ("Bootstrap",),
                "Bootstrap has no InetAddr in its Transport: name the instance to copy",
            )
        )
    found += _modules(config)
    found += _message_types(config)
    if config.sow is not None:
        found += _sow(config.sow, config)
    found += problems_of(config)
    return found


def _version(config: AmpsConfig) -> Iterator[Problem]:
    wanted = config.required_version
    if wanted is not None and _numbers(wanted) > _numbers(VERSION):
        yield (
            ("RequiredMinimumVersion",),
            f"RequiredMinimumVersion is {wanted}: what is followed here is {VERSION}",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _transports(config: AmpsConfig) -> Iterator[Problem]:
    names: dict[str, int] = {}
    taken: dict[tuple[str, int], str] = {}
    for number, transport in enumerate(config.transports.transports):
        path: Path = ("Transports", "Transport", number)
        if transport.name in names:
            yield path, f"two transports are called {transport.name}: give each a name of its own"
        names[transport.name] = number
        if transport.inet_address is None:
            continue
        host, port = split_listen_address(transport.inet_address)
        for other in (host, "0.0.0.0", "::"):
            if (other, port) in taken:
                yield (
                    (*path, "InetAddr"),
                    f"InetAddr {transport.inet_address} of {transport.name} is taken by "
                    f"{taken[other, port]}",
                )
                break
        else:
            taken[host, port] = transport.name


def _destinations(config: AmpsConfig) -> Iterator[Problem]:
    destinations = config.destinations()
    for name, count in Counter(destination.name for destination in destinations).items():
        if count > 1:
            numbers = [n for n, each in enumerate(destinations) if each.name == name]
            yield (
                ("Replication", "Destination", numbers[1]),
                f"{count} destinations are called {name}: give each a Name of its own",
            )
    syncs = sum(destination.sync_type == "sync" for destination in destinations)
    if syncs > SYNC_DESTINATIONS_MAX:
        yield (
            ("Replication",),
            f"{syncs} destinations use sync acknowledgment: at most {SYNC_DESTINATIONS_MAX} can; "
            "make the others async",
        )
    if destinations and config.transaction_log is None:
        yield (
            ("Replication",),
            "Replication needs a TransactionLog: what is replicated is recorded there",
        )
        return
    recorded = _matcher(config.transaction_log.topics if config.transaction_log else ())
    for number, destination in enumerate(destinations):
        yield from _destination_topics(
            ("Replication", "Destination", number), destination, recorded, config.sow
        )


def _matcher(topics: Iterable[LogTopic]) -> TopicMatcher:
    return TopicMatcher(tuple(TopicRule(topic.name, topic.message_type) for topic in topics))


def _destination_topics(
    path: Path, destination: DestinationStanza, recorded: TopicMatcher, sow: SowStanza | None
) -> Iterator[Problem]:
    local = sow.local_queues if sow else ()
    queues = {(queue.name, queue.message_type) for queue in sow.all_queues} if sow else set()
    for number, topic in enumerate(destination.topics):
        here: Path = (*path, "Topic", number)
        wrong = filter_problem(topic.filter, "*") if topic.filter else ""
        if wrong:
            yield (*here, "Filter"), wrong
        rule = TopicMatcher((TopicRule(topic.name, topic.message_type),))
        for queue in local:
            if rule.matches(queue.name.encode(), queue.message_type.encode()):
                how = f" (as {topic.name} would)" if topic.name != queue.name else ""
                yield (
                    here,
                    f"{queue.name} is a LocalQueue: it cannot be replicated{how}; replicate its "
                    "underlying topic, or define a Queue or GroupLocalQueue",
                )
        if is_regex(topic.name) or (topic.name, topic.message_type) in queues:
            continue
        if not recorded.matches(topic.name.encode(), topic.message_type.encode()):
            yield (
                here,
                f"topic {topic.name} of type {topic.message_type} is not in the TransactionLog: "
                "add it there, for only what is recorded is replicated",
            )


def _message_types(config: AmpsConfig) -> Iterator[Problem]:
    stanzas = config.message_types.message_types if config.message_types else ()
    usable: list[TypeDefinition] = []
    for number, stanza in enumerate(stanzas):
        if unsupported(stanza) or stanza.module not in KIND_NAMES:
            continue
        text = problem([*usable, definition(stanza)])
        if text:
            yield ("MessageTypes", "MessageType", number), text
        else:
            usable.append(definition(stanza))


def _modules(config: AmpsConfig) -> Iterator[Problem]:
    own = {module.name for module in config.modules.modules} if config.modules else set()
    for path, use in _module_uses(config):
        built_in = BUILT_IN_FILTERS if "TransportFilter" in path else BUILT_IN_MODULES
        if use is not None and use.module not in own and use.module not in built_in:
            yield (
                (*path, "Module"),
                f"Module {use.module} is neither built in nor in Modules: define it there",
            )


def _module_uses(config: AmpsConfig) -> Iterator[tuple[Path, ModuleUse | None]]:
    yield ("Authentication",), config.authentication
    yield ("Entitlement",), config.entitlement
    for number, transport in enumerate(config.transports.transports):
        path: Path = ("Transports", "Transport", number)
        yield (*path, "Authentication"), transport.authentication
        yield (*path, "Entitlement"), transport.entitlement
        for inner, use in enumerate(transport.filters):
            yield (*path, "TransportFilter", inner), use
    for number, destination in enumerate(config.destinations()):
        for inner, outgoing in enumerate(destination.transports):
            path = ("Replication", "Destination", number, "Transport", inner)
            yield (*path, "Authenticator"), outgoing.authenticator
            yield (*path, "Authentication"), outgoing.authentication
            yield (*path, "Entitlement"), outgoing.entitlement
    if config.admin is not None:
        yield ("Admin", "Authentication"), config.admin.authentication
        yield ("Admin", "Entitlement"), config.admin.entitlement


def _sow(sow: SowStanza, config: AmpsConfig) -> Iterator[Problem]:
    defined: dict[str, list[tuple[int, str]]] = {}
    kinds: tuple[tuple[str, Sequence[_Definition]], ...] = (
        ("Topic", sow.topics),
        ("View", sow.views),
        ("ConflatedTopic", sow.conflated_topics),
        ("Queue", sow.queues),
        ("LocalQueue", sow.local_queues),
        ("GroupLocalQueue", sow.group_local_queues),
    )
    for kind, items in kinds:
        for number, item in enumerate(items):
            key = (item.name, item.message_type)
            known = defined.setdefault(item.name, [])
            if any(message_type == key[1] for _, message_type in known):
                yield (
                    ("SOW", kind, number),
                    f"{item.name} of type {item.message_type} is defined twice in SOW",
                )
            known.append((item.position, item.message_type))
    for number, topic in enumerate(sow.topics):
        try:
            for place, text in topic_problems(topic, config):
                yield ("SOW", "Topic", number, *place), text
        except ConfigurationError as error:
            yield ("SOW", "Topic", number), str(error)
    yield from _underlying(sow, defined)
    for place, text in view_texts(config):
        yield ("SOW", *place), text
    recorded = _matcher(config.transaction_log.topics if config.transaction_log else ())
    for kind, queues in (
        ("Queue", sow.queues),
        ("LocalQueue", sow.local_queues),
        ("GroupLocalQueue", sow.group_local_queues),
    ):
        for number, queue in enumerate(queues):
            yield from _queue(("SOW", kind, number), queue, recorded)
            try:
                for place, text in queue_texts(queue, config):
                    yield ("SOW", kind, number, *place), text
            except ConfigurationError as error:
                yield ("SOW", kind, number), str(error)


def _underlying(sow: SowStanza, defined: dict[str, list[tuple[int, str]]]) -> Iterator[Problem]:
    over: list[tuple[Path, ViewStanza | ConflatedTopicStanza, str | None]] = [
        (("SOW", "View", number), view, view.underlying.topic)
        for number, view in enumerate(sow.views)
    ]
    over += [
        (("SOW", "ConflatedTopic", number), topic, topic.underlying_topic)
        for number, topic in enumerate(sow.conflated_topics)
    ]
    for path, item, name in over:
        if name is not None and not any(
            position < item.position for position, _ in defined.get(name, ())
        ):
            yield (
                (*path, "UnderlyingTopic"),
                f"UnderlyingTopic {name} of {item.name} is not defined above it in SOW",
            )


def _queue(path: Path, queue: Queue, recorded: TopicMatcher) -> Iterator[Problem]:
    name, message_type = queue.underlying, queue.message_type
    found = (
        any(rule.message_type == message_type for rule in recorded.rules)
        if is_regex(name)
        else recorded.matches(name.encode(), message_type.encode())
    )
    if not found:
        yield (
            path,
            f"queue {queue.name}: its underlying topic {name} of type {message_type} is not in the "
            "TransactionLog: add it there",
        )
