"""Checks that need the whole fabric: names, links, ports, limits. Values in, values out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from raylay.services.actions.checks import endless
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
)
from raylay.services.configuration.transports import (
    ReplicationTransportSettings,
    TransportSettings,
)
from raylay.services.errors import ConfigurationError
from raylay.services.messages.event_topics import EVENT_TOPICS, is_event_topic
from raylay.services.messages.topic_sets import may_overlap
from raylay.services.messages.topics import (
    RESERVED,
    TopicMatcher,
    TopicRule,
    all_but,
    compile_regex,
    is_regex,
)
from raylay.services.plugins.definition_problem import DefinitionProblem
from raylay.services.plugins.filters import filter_problem
from raylay.services.plugins.queue_checks import letter_circle, queue_problems
from raylay.services.plugins.sow_checks import sow_problems
from raylay.services.plugins.views import conflated_problems, view_problems
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.link.routing import SYNC_DESTINATIONS_MAX
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition


class TopologyProblem(NamedTuple):
    """Something that makes a fabric impossible.

    Attributes:
        subject: the instance, and the destination where it is one: keys of the builder's origins.
        text: what is wrong and what to do.
    """

    subject: tuple[str, ...]
    text: str


def problems(settings: FabricSettings) -> list[TopologyProblem]:
    """Returns everything that is wrong with a fabric, in the order declared; empty: the fabric can
    be started."""
    if not settings.instances:
        return [
            TopologyProblem((), f"fabric {settings.name} has no instances: declare a region or one")
        ]
    found = list(_topics(settings))
    found += _names(settings)
    found += _ports(settings)
    found += dict.fromkeys(
        problem
        for instance in settings.instances
        for problem in (
            *_sow(settings, instance),
            *_views(settings, instance),
            *_conflated(settings, instance),
            *_queues(settings, instance),
        )
    )
    for instance in settings.instances:
        found += _destinations(settings, instance)
        found += _bootstrap(settings, instance)
        found += _actions(settings, instance)
    return found


def _actions(settings: FabricSettings, instance: InstanceSettings) -> Iterator[TopologyProblem]:
    """Checks the actions that an instance has: their names, circles, and the archive directory."""
    actions = settings.actions_of(instance)
    if not actions:
        return
    names = Counter(each.name for each in actions)
    for name, count in names.items():
        if count > 1:
            yield TopologyProblem(
                (instance.name,),
                f"instance {instance.name}: {count} actions are called {name}: give each a name",
            )
    for text in endless(actions):
        yield TopologyProblem((instance.name,), f"instance {instance.name}: {text}")
    unjournaled = settings.unjournaled_of(instance)
    takes = TopicMatcher((*settings.journaled_of(instance), *(unjournaled or ())))
    for action in () if unjournaled is None else actions:
        for step in action.steps:
            topic, message_type = step.option("Topic"), step.option("MessageType")
            is_known = step.module != "publish-message" or "{{" in topic + message_type
            if not is_known and not takes.matches(topic.encode(), message_type.encode()):
                yield TopologyProblem(
                    (instance.name,),
                    f"instance {instance.name}: action {action.name} publishes to {topic} of type "
                    f"{message_type}, which it does not take: declare that topic",
                )
    archives = settings.journal_of(instance).archive_directory is not None
    for action in () if archives else actions:
        if any(step.module == "archive-journal" for step in action.steps):
            yield TopologyProblem(
                (instance.name,),
                f"instance {instance.name}: action {action.name} archives segments and there is no "
                "archive directory: give `archive_directory` of `journal`",
            )


def _bootstrap(settings: FabricSettings, instance: InstanceSettings) -> Iterator[TopologyProblem]:
    if instance.bootstrap is None:
        return
    known = [other.name for other in settings.instances]
    subject = (instance.name,)
    where = f"bootstrap of {instance.name}"
    for source in instance.bootstrap.sources:
        wrong = _target_problem(source, instance.name, known)
        if wrong:
            yield TopologyProblem(subject, f"{where}: {wrong}")
    for topic in instance.bootstrap.topics:
        if topic.filter or not topic.journaled:
            yield TopologyProblem(
                subject,
                f"{where}: topic {topic.name} has a filter or is not journaled: name and message "
                "type are all that it may have",
            )


def _topics(settings: FabricSettings) -> Iterator[TopologyProblem]:
    journaled = [topic for topic in settings.topics if topic.journaled]
    for topic in settings.topics:
        if topic.filter:
            yield TopologyProblem(
                ("topics", topic.name),
                f"topic {topic.name} of the fabric has a filter: it belongs to a topic of a "
                "destination",
            )
        if topic.include_validation is not None or topic.exclude_validation is not None:
            yield TopologyProblem(
                ("topics", topic.name),
                f"topic {topic.name} of the fabric names checks: they belong to the topics of a "
                "destination",
            )
        if topic.journaled:
            continue
        for other in journaled:
            kinds = (topic.message_type, other.message_type)
            # An expression is for all that the others leave: of other types, too.
            same_type = kinds[0] == kinds[1] or other.message_type == "*"
            same_type |= topic.message_type == "*" and not is_regex(topic.name)
            same_name = topic.name == other.name or (
                not is_regex(topic.name)
                and is_regex(other.name)
                and compile_regex(other.name, "topic").search(topic.name)
            )
            if same_type and same_name:
                yield TopologyProblem(
                    ("topics", topic.name),
                    f"topic {topic.name} is declared as not journaled, but the journaled topic "
                    f"{other.name} matches it: narrow that expression",
                )


Defined = TypeVar(
    "Defined",
    bound=SowTopicDefinition | ViewDefinition | ConflatedTopicDefinition | QueueDefinition,
)


@dataclass(frozen=True, slots=True)
class _PlacedDefinition(Generic[Defined]):
    """A definition of a SOW topic, view or queue, with the words that name it in a problem.

    Attributes:
        twice: whether an earlier definition has the same name and type.
        own: whether the definition is the instance's, not the fabric's.
    """

    definition: Defined
    subject: tuple[str, ...]
    where: str
    twice: bool
    own: bool

    def told(
        self, check: Callable[[Defined], list[DefinitionProblem]]
    ) -> Iterator[TopologyProblem]:
        """Yields the problems of the definition taken alone."""
        if self.twice:
            kind = self.definition.message_type
            yield TopologyProblem(
                self.subject, f"{self.where} of type {kind} is defined twice: take one of them out"
            )
        try:
            found = check(self.definition)
        except ConfigurationError as error:
            found = [DefinitionProblem((), str(error))]
        for problem in found:
            shown = " ".join(
                str(part + 1) if isinstance(part, int) else part for part in problem.place
            )
            yield TopologyProblem(
                (*self.subject, *map(str, problem.place)),
                f"{self.where}{f', {shown}' if shown else ''}: {problem.text}",
            )

    def not_journaled(self, instance: InstanceSettings, takes: str, why: str) -> TopologyProblem:
        """Returns the problem that none of the instance's journaled topics takes the messages that
        the definition needs."""
        of = "" if instance.topics is None else f" of {instance.name}"
        kind = self.subject[-2]
        more = f", or give {instance.name} {kind} of its own" if of and not self.own else ""
        return TopologyProblem(
            self.subject,
            f"{self.where}: no journaled topic{of} takes {takes} of type "
            f"{self.definition.message_type}, and {why}: add it to topics{more}",
        )


def _placed(
    definitions: Iterable[Defined], kind: str, what: str, instance: InstanceSettings
) -> Iterator[_PlacedDefinition[Defined]]:
    """Yields the definitions that an instance has, its own or the fabric's; `kind` is their key in
    a file."""
    own = getattr(instance, kind) is not None
    seen: set[tuple[str, str]] = set()
    for number, each in enumerate(definitions):
        subject = (*((instance.name,) if own else ()), kind, str(number))
        where = f"{what} {each.name}{f' of {instance.name}' if own else ''}"
        name = (each.name, each.message_type)
        yield _PlacedDefinition(each, subject, where, name in seen, own)
        seen.add(name)


def _sow(settings: FabricSettings, instance: InstanceSettings) -> Iterator[TopologyProblem]:
    """Checks the topics with state that an instance has."""
    types = settings.types_of(instance)
    log = settings.journaled_of(instance)
    for placed in _placed(settings.sow_of(instance), "sow_topics", "SOW topic", instance):
        topic = placed.definition
        yield from placed.told(partial(sow_problems, types=types))
        if not is_journaled(topic, log):
            takes = topic.pattern or topic.name
            yield placed.not_journaled(instance, takes, "state is made from the journal")


def _views(settings: FabricSettings, instance: InstanceSettings) -> Iterator[TopologyProblem]:
    """Checks the views that an instance has."""
    types, topics = settings.types_of(instance), settings.sow_of(instance)
    with_state = {(each.name, each.message_type) for each in topics}
    before: list[ViewDefinition] = []
    for placed in _placed(settings.views_of(instance), "views", "view", instance):
        view = placed.definition
        if (view.name, view.message_type) in with_state:
            yield TopologyProblem(
                placed.subject,
                f"{placed.where}: there is a SOW topic of this name: give the view another one",
            )
        yield from placed.told(
            partial(
                view_problems,
                topics=topics,
                before=tuple(before),
                types=types,
                queues=settings.queues_of(instance),
            )
        )
        before.append(view)


def _conflated(settings: FabricSettings, instance: InstanceSettings) -> Iterator[TopologyProblem]:
    """Checks the conflated topics that an instance has."""
    types = settings.types_of(instance)
    before: list[SowTopicDefinition | ViewDefinition | ConflatedTopicDefinition] = [
        *settings.sow_of(instance),
        *settings.views_of(instance),
    ]
    taken = {(each.name, each.message_type) for each in before}
    for placed in _placed(
        settings.conflated_of(instance), "conflated_topics", "conflated topic", instance
    ):
        topic = placed.definition
        if (topic.name, topic.message_type) in taken:
            yield TopologyProblem(
                placed.subject,
                f"{placed.where}: there is a SOW topic or view of this name: give the conflated "
                "topic another one",
            )
        yield from placed.told(partial(conflated_problems, before=tuple(before), types=types))
        before.append(topic)


def _queues(settings: FabricSettings, instance: InstanceSettings) -> Iterator[TopologyProblem]:
    """Checks the queues that an instance has."""
    types = settings.types_of(instance)
    log = TopicMatcher(
        tuple(topic.rule() for topic in settings.topics_of(instance) if topic.journaled)
    )
    with_state = {(each.name, each.message_type) for each in settings.sow_of(instance)}
    for placed in _placed(settings.queues_of(instance), "queues", "queue", instance):
        queue, subject, where = placed.definition, placed.subject, placed.where
        if (queue.name, queue.message_type) in with_state:
            yield TopologyProblem(
                subject,
                f"{where}: there is a SOW topic of this name: give the queue another one, and the "
                "SOW topic as its underlying topic",
            )
        yield from placed.told(partial(queue_problems, types=types))
        if is_event_topic(queue.topic):
            yield TopologyProblem(
                subject,
                f"{where}: {queue.topic} is an event topic, and events are in no journal, so no "
                "queue has them: name another underlying topic",
            )
        if not holds_journaled(queue, log):
            why = "what is in no journal is in no queue"
            yield placed.not_journaled(instance, queue.topic, why)
        if queue.dead_letters:
            if not log[queue.dead_letters.encode(), queue.message_type.encode()]:
                why = "a dead letter that is in no journal is lost"
                yield placed.not_journaled(instance, queue.dead_letters, why)
            if (queue.dead_letters, queue.message_type) in with_state:
                yield TopologyProblem(
                    subject,
                    f"{where}: dead_letters {queue.dead_letters} is a SOW topic, where a letter "
                    "would replace another one: name a topic without a SOW",
                )
            circle = letter_circle(queue, settings.queues_of(instance))
            if circle:
                yield TopologyProblem(
                    subject,
                    f"{where}: its dead letters would come back to it by way of the queues "
                    f"{', '.join(circle)}, for ever: end that at a topic of no queue",
                )
        yield from _replicated_local(settings, instance, queue, subject, where)
        yield from _half_replicated(settings, instance, queue, subject, where)


def _replicated_local(
    settings: FabricSettings,
    instance: InstanceSettings,
    queue: QueueDefinition,
    subject: tuple[str, ...],
    where: str,
) -> Iterator[TopologyProblem]:
    """Yields a problem for each destination to which the acknowledgments of a queue of one instance
    would go."""
    if queue.is_distributed:
        return
    local = [each.name for each in settings.queues_of(instance) if not each.is_distributed]
    for destination in instance.destinations:
        if takes(destination, queue.name, queue.message_type):
            yield TopologyProblem(
                subject,
                f"{where} is local and destination {destination.name} of {instance.name} takes "
                f"topic {queue.name}: narrow its topics, as by {all_but(local)}, so that at most "
                "the underlying topic is replicated, under another name, or take the kind queue "
                "or group_local",
            )


def _half_replicated(
    settings: FabricSettings,
    instance: InstanceSettings,
    queue: QueueDefinition,
    subject: tuple[str, ...],
    where: str,
) -> Iterator[TopologyProblem]:
    """Yields a problem for each link that brings either the messages of a queue of several
    instances, or its acknowledgments, but not both."""
    if not queue.is_distributed or queue.topic == queue.name:
        return
    for destination in instance.destinations:
        has = takes(destination, queue.name, queue.message_type)
        lacks = not _takes_all(destination, queue.topic, queue.message_type)
        if is_regex(queue.topic) and not has:
            continue  # Some of its topics may go where the queue is not.
        if has != lacks:
            continue
        targets = destination.to or waited_for(settings, instance, destination)
        sharing = [name for name in targets if shares(settings, instance, queue, name)]
        if not sharing:
            continue
        taken, left = (queue.name, queue.topic) if has else (queue.topic, queue.name)
        yield TopologyProblem(
            subject,
            f"{where} is of {sharing[0]} too, and destination {destination.name} of "
            f"{instance.name} takes topic {taken} and not {left}: add topic {left} to destination "
            f"{destination.name} of {instance.name}, as a queue's messages and what is said of "
            "them go together",
        )


def shares(
    settings: FabricSettings, instance: InstanceSettings, queue: QueueDefinition, name: str
) -> bool:
    """Returns whether the instance with this name has the same queue as `instance`. False for the
    queue of the drills, which links do not compare either."""
    found = next((each for each in settings.instances if each.name == name), None)
    if found is None or queue.name.startswith(RESERVED):
        return False
    return any(
        (each.name, each.message_type, each.kind) == (queue.name, queue.message_type, queue.kind)
        and (
            queue.kind == "queue"
            or (each.domain or found.group) == (queue.domain or instance.group)
        )
        for each in settings.queues_of(found)
    )


def takes(destination: DestinationSettings, name: str, message_type: str) -> bool:
    """Returns whether a destination takes a topic."""
    rules = tuple(TopicRule(each.name, each.message_type) for each in destination.topics)
    return TopicMatcher(rules).matches(name.encode(), message_type.encode())


def _takes_all(destination: DestinationSettings, topic: str, message_type: str) -> bool:
    """Returns whether a destination takes a topic, or all that an expression matches; where that
    cannot be decided, it does."""
    if not is_regex(topic):
        return takes(destination, topic, message_type)
    return any(
        each.message_type in ("*", message_type) and may_overlap(each.name, topic)
        for each in destination.topics
    )


def holds_journaled(queue: QueueDefinition, log: TopicMatcher) -> bool:
    """Returns whether a transaction log takes what a queue holds; under an expression some of
    it."""
    if not is_regex(queue.topic):
        return log.matches(queue.topic.encode(), queue.message_type.encode())
    return any(
        rule.message_type in ("*", queue.message_type) and may_overlap(rule.name, queue.topic)
        for rule in log.rules
    )


def is_journaled(topic: SowTopicDefinition, log: tuple[TopicRule, ...]) -> bool:
    """Returns whether a transaction log takes the messages from which a SOW topic is built; for a
    topic with a pattern, whether it takes some of them. An event topic needs no log: the instance
    itself makes its messages."""
    if topic.name in EVENT_TOPICS:
        return True
    if not topic.pattern:
        kind = topic.message_type.encode()
        return TopicMatcher(log).matches(topic.name.encode(), kind)
    return any(
        rule.message_type in ("*", topic.message_type) and may_overlap(rule.name, topic.pattern)
        for rule in log
    )


def _names(settings: FabricSettings) -> Iterator[TopologyProblem]:
    counted = Counter(instance.name for instance in settings.instances)
    for name, count in counted.items():
        if count > 1:
            yield TopologyProblem((name,), f"{count} instances are named {name}: names are unique")
    # Data directories are named after instances, and some file systems ignore case.
    folded = Counter(name.lower() for name in counted)
    for name in counted:
        if folded[name.lower()] > 1:
            yield TopologyProblem((name,), f"instance {name} differs from another one only by case")


def _ports(settings: FabricSettings) -> Iterator[TopologyProblem]:
    taken: dict[tuple[str, int], str] = {}
    for instance in settings.instances:
        interface = settings.interface_of(instance)
        for kind, listens_on, port in (
            *_listeners("client_port", instance.for_clients()),
            *_listeners("replication_port", instance.for_instances()),
            ("metrics_port", instance.host, instance.metrics_port or 0),
            ("the port of admin", interface.host or instance.host, interface.port or 0),
        ):
            if not port:
                continue
            # An instance that listens on every address of a host clashes with all of them.
            for host in (listens_on, "0.0.0.0", "*"):
                other = taken.get((host, port))
                if other is not None:
                    yield TopologyProblem(
                        (instance.name,),
                        f"instance {instance.name}: {kind} {port} on {listens_on} is taken by "
                        f"{other}",
                    )
                    break
            else:
                taken[(listens_on, port)] = f"{kind} of {instance.name}"


def _listeners(
    first: str, transports: tuple[TransportSettings | ReplicationTransportSettings, ...]
) -> Iterator[tuple[str, str, int]]:
    """Yields for each of these transports the name of its port, its host and the port."""
    for number, each in enumerate(transports):
        yield f"port of transport {each.name}" if number else first, each.host, each.port


def _destinations(
    settings: FabricSettings, instance: InstanceSettings
) -> Iterator[TopologyProblem]:
    known = {other.name: other for other in settings.instances}
    names = Counter(destination.name for destination in instance.destinations)
    for name, count in names.items():
        if count > 1:
            yield TopologyProblem(
                (instance.name, name),
                f"instance {instance.name} has {count} destinations named {name}: give each a name",
            )
    syncs = sum(1 for destination in instance.destinations if destination.sync)
    if syncs > SYNC_DESTINATIONS_MAX:
        yield TopologyProblem(
            (instance.name,),
            f"instance {instance.name} has {syncs} sync destinations: at most "
            f"{SYNC_DESTINATIONS_MAX} are possible; make the others async",
        )
    claimed: dict[str, str] = {}
    types = settings.types_of(instance)
    for destination in instance.destinations:
        subject = (instance.name, destination.name)
        where = f"destination {destination.name} of {instance.name}"
        for topic in destination.topics:
            wrong = filter_problem(topic.filter, topic.message_type, types) if topic.filter else ""
            if wrong:
                yield TopologyProblem(subject, f"{where}, topic {topic.name}: {wrong}")
        if not destination.to and (destination.dial or not destination.group):
            yield TopologyProblem(subject, f"{where} names no instance to go to")
        elif not destination.group and all(":" in target for target in destination.to):
            yield TopologyProblem(subject, f"{where} goes to another fabric: give the group there")
        for target in (*destination.to, *destination.waits_for):
            wrong = _target_problem(target, instance.name, known)
            if wrong:
                yield TopologyProblem(subject, f"{where}: {wrong}")
            elif ":" in target:
                continue
            elif known[target].group != destination.group:
                yield TopologyProblem(
                    subject,
                    f"{where}: {target} is in group {known[target].group}, expected "
                    f"{destination.group}: the instances of one destination are of one group",
                )
            elif destination.dial and target in destination.to and not known[target].accepts_links:
                yield TopologyProblem(
                    subject,
                    f"{where}: {target} accepts no links: give it a replication transport, or have "
                    "the destination wait for its connection",
                )
        if not destination.dial:
            yield from _waiting(known, instance, destination, subject, where)
        if len(set(destination.to)) != len(destination.to):
            yield TopologyProblem(subject, f"{where} names an instance twice")
        if len(destination.to) == 1:
            other = claimed.setdefault(destination.to[0], destination.name)
            if other != destination.name:
                yield TopologyProblem(
                    subject,
                    f"{where} and {other} go to the same instance {destination.to[0]}: join them",
                )


def _waiting(
    known: dict[str, InstanceSettings],
    instance: InstanceSettings,
    destination: DestinationSettings,
    subject: tuple[str, ...],
    where: str,
) -> Iterator[TopologyProblem]:
    """Checks that the instances for which a destination that does not dial waits can connect."""
    for target in destination.to:
        if ":" in target:
            yield TopologyProblem(
                subject,
                f"{where} does not dial, so {target} is of no use: name instances, or none and the "
                "group",
            )
    targets = [known[target] for target in destination.to if target in known]
    if targets and not any(dials(target, instance) for target in targets):
        names = ", ".join(target.name for target in targets)
        yield TopologyProblem(
            subject,
            f"{where} does not dial, and {names} has no destination that dials {instance.name}: "
            "neither would ever connect; let one of the two dial",
        )


def waited_for(
    settings: FabricSettings, instance: InstanceSettings, destination: DestinationSettings
) -> tuple[str, ...]:
    """Returns the instances of the fabric over whose connections a destination that does not dial
    may push: of the instances that the destination names, or else of its group, those that connect
    to this instance."""
    named = set(destination.to)
    return tuple(
        other.name
        for other in settings.instances
        if (other.name in named if named else other.group == destination.group)
        and other.name != instance.name
        and dials(other, instance)
    )


def dials(source: InstanceSettings, target: InstanceSettings) -> bool:
    """Returns whether an instance may connect to another one by itself: by an address, it may be
    any of the destination's group."""
    return any(
        destination.dial
        and (
            target.name in destination.to
            or (destination.group == target.group and any(":" in each for each in destination.to))
        )
        for destination in source.destinations
    )


def _target_problem(target: str, own: str, known: Collection[str]) -> str:
    """Returns why the instance `own` cannot connect to a target; empty: it can."""
    if ":" in target:
        return "" if _is_address(target) else f"{target!r} is no address: give host:port"
    if target == own:
        return f"{target} is the instance itself: name another one"
    if target not in known:
        return f"no instance is named {target}; there are {', '.join(known)}"
    return ""


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit() and 0 < int(port) < 65_536
