"""Validation at connect (seed: "Replication Configuration Validation"; behaviour.md 1.5).

At its logon a link brings a description of its instance, an `InstanceDescription`. The instance
downstream compares it with its own and refuses the link where a check fails. That instance reports
what to change, and the link is told the same words.

**The topics of a check.** A check is made for each topic that the Destination brings to the
instance downstream:

- each name that either side writes anywhere (in a log, a destination, a SOW, a queue), is logged
  upstream and matches a Topic of the Destination. A literal Topic has precedence over an
  expression, so its checks are the ones that count for its name;
- and, where an expression of a Topic meets an expression of the log upstream, the names that no
  configuration mentions: those in both. They are covered by rules that certainly take all of either
  expression: the same text, or what `topic_sets.includes` proves (`^fx` takes all of `^fx/eur`). An
  inclusion that cannot be proved counts as a failure, since a check that guesses would let mistakes
  pass. Writing the same text on both sides, or an exclusion, resolves it.

**The destinations that lead back.** A destination downstream reaches the upstream instance when it
names its group, and its servers where they are known. Where they are not, the Name decides: if one
of that group's destinations is named after the upstream instance, only that one counts, else each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from raylay.services.errors import ConfigurationError
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.messages.topic_sets import exact_names, includes, may_overlap
from raylay.services.messages.topics import (
    TopicRule,
    compile_regex,
    is_regex,
)

CHECKS = (
    "txlog",
    "replicate",
    "sow",
    "cascade",
    "queue",
    "keys",
    "replicate_filter",
    "queue_passthrough",
    "queue_underlying",
)
"""Checks in the order of the documents."""
ALWAYS_CHECKED = frozenset(("queue", "queue_underlying"))
QUEUE_KINDS = ("queue", "local", "group_local")
FAILURES_TOLD_MAX = 8
ANY = "*"


@dataclass(frozen=True, slots=True)
class SowTerms:
    """A SOW/Topic: `keys` are its Key elements in order."""

    name: str
    message_type: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """A Queue, LocalQueue or GroupLocalQueue.

    Attributes:
        kind: one of QUEUE_KINDS.
        underlying: the UnderlyingTopic as written; empty: the queue's own name.
        filter: the filter as written; empty: none.
        domain: GroupLocalQueueDomain of a group-local queue; empty: the instance's Group.
        initial_owner: InitialOwner of a group-local queue; empty: not known.
    """

    name: str
    message_type: str
    kind: str = "queue"
    underlying: str = ""
    filter: str = ""
    domain: str = ""
    initial_owner: str = ""


Definition = TypeVar("Definition", SowTerms, QueueTerms)


@dataclass(frozen=True, slots=True)
class DestinationTerms:
    """The settings of a Destination that the checks need.

    Attributes:
        servers: names of the instances that the destination may reach; empty: not known.
    """

    name: str
    group: str
    topics: tuple[TopicRule, ...]
    pass_through: str | None = None
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    """The description of an instance for validation. A description that comes over a link has one
    destination: that link's."""

    name: str
    group: str
    log: tuple[TopicRule, ...]
    destinations: tuple[DestinationTerms, ...] = ()
    sow: tuple[SowTerms, ...] = ()
    queues: tuple[QueueTerms, ...] = ()


class ValidationFailure(NamedTuple):
    """A check that failed.

    Attributes:
        check: one of CHECKS.
        topic: a topic, or an expression that stands for topics that no configuration mentions.
        text: what is wrong, and what to change where.
    """

    check: str
    topic: str
    message_type: str
    text: str


def enforced(rule: TopicRule) -> frozenset[str]:
    """Returns the checks that a Topic of a Destination enforces: the included ones without the
    excluded ones, and always the two that cannot be excluded."""
    included = frozenset(CHECKS if rule.include_validation is None else rule.include_validation)
    return (included - frozenset(rule.exclude_validation)) | ALWAYS_CHECKED


def stored_topics(rules: Iterable[TopicRule]) -> tuple[TopicRule, ...]:
    """Returns the rules of a Destination whose messages are certain to be stored there: without the
    check `txlog`, the other side may pass them over."""
    return tuple(rule for rule in rules if "txlog" in enforced(rule))


def check_rule(rule: TopicRule, where: str) -> None:
    """Raises ConfigurationError where IncludeValidation or ExcludeValidation of a Topic names an
    unknown check, or excludes one that cannot be excluded."""
    for element, names in (
        ("IncludeValidation", rule.include_validation or ()),
        ("ExcludeValidation", rule.exclude_validation),
    ):
        for name in names:
            if name not in CHECKS:
                raise ConfigurationError(
                    f"{where}: {element} of Topic {rule.name!r} names {name!r}: "
                    f"the checks are {', '.join(CHECKS)}"
                )
    for name in rule.exclude_validation:
        if name in ALWAYS_CHECKED:
            raise ConfigurationError(
                f"{where}: ExcludeValidation of Topic {rule.name!r} names {name!r}, which cannot "
                "be excluded: take it out"
            )


def told(failures: Iterable[ValidationFailure]) -> str:
    """Returns failures as one text, with the first `FAILURES_TOLD_MAX` of them in full."""
    found = list(failures)
    lines = [f"{failure.check}: {failure.text}" for failure in found[:FAILURES_TOLD_MAX]]
    if len(found) > FAILURES_TOLD_MAX:
        lines.append(f"and {len(found) - FAILURES_TOLD_MAX} more")
    return "; ".join(lines)


def check(
    destination: DestinationTerms, upstream: InstanceDescription, downstream: InstanceDescription
) -> list[ValidationFailure]:
    """Returns every failed check of every topic; empty: the link may connect.

    Args:
        destination: the destination of `upstream` that leads to `downstream`.
    """
    validation = _Validation(destination, upstream, downstream)
    found: dict[tuple[str, str, str], ValidationFailure] = {}
    for subject, rules in _subjects(destination, upstream, downstream):
        for rule in rules:
            made = enforced(rule)
            for name in CHECKS:
                key = (name, subject.name, subject.message_type)
                text = validation.run(name, subject, rule) if name in made else ""
                if text:
                    found.setdefault(key, ValidationFailure(*key, text))
    # A check that fails for all types of a topic is not reported again for each type.
    return [
        failure
        for (name, topic, kind), failure in found.items()
        if kind == ANY or (name, topic, ANY) not in found
    ]


class _Subject(NamedTuple):
    """A topic, or the topics that two expressions have in common."""

    name: str
    also: str
    message_type: str

    @property
    def is_literal(self) -> bool:
        return not self.also

    def __str__(self) -> str:
        shown = self.name if self.also in ("", self.name) else f"{self.name} in {self.also}"
        return f"{shown} ({'any type' if self.message_type == ANY else self.message_type})"


def _meet(one: str, other: str) -> str | None:
    """Returns the message type that both rules take; None: none."""
    if one == ANY:
        return other
    return one if other in (ANY, one) else None


class _Rules:
    """Topic rules, indexed by topic."""

    __slots__ = ("_literals", "expressions")

    def __init__(self, rules: Iterable[TopicRule], where: str) -> None:
        self._literals: dict[str, list[TopicRule]] = {}
        self.expressions: list[tuple[TopicRule, TopicPattern]] = []
        for rule in rules:
            if is_regex(rule.name):
                self.expressions.append((rule, compile_regex(rule.name, where)))
            else:
                self._literals.setdefault(rule.name, []).append(rule)

    def matching(self, subject: _Subject) -> tuple[list[TopicRule], list[TopicRule]]:
        """Returns the literal rules and the expressions that take some messages of a topic."""
        kind = subject.message_type
        literals = [
            rule for rule in self._literals.get(subject.name, ()) if _meet(rule.message_type, kind)
        ]
        expressions = [
            rule
            for rule, pattern in self.expressions
            if _meet(rule.message_type, kind)
            and (
                pattern.search(subject.name)
                if subject.is_literal
                else may_overlap(rule.name, subject.name) and may_overlap(rule.name, subject.also)
            )
        ]
        return literals, expressions

    def of(self, subject: _Subject) -> list[TopicRule]:
        """Returns the rules that decide for a topic; literal ones have precedence over
        expressions."""
        literals, expressions = self.matching(subject)
        kinds = (ANY, subject.message_type)
        if any(rule.message_type in kinds for rule in literals):
            return literals
        return literals + expressions

    def cover(self, subject: _Subject) -> bool:
        """Returns whether the rules certainly take all messages of a topic."""
        kinds = (ANY, subject.message_type)
        if subject.is_literal:
            literals, expressions = self.matching(subject)
            return any(rule.message_type in kinds for rule in literals + expressions)
        rules = [rule.name for rule, _ in self.expressions if rule.message_type in kinds]
        rules += [
            name
            for name, literals in self._literals.items()
            if any(rule.message_type in kinds for rule in literals)
        ]
        return includes(rules, subject.name) or includes(rules, subject.also)


def _names(description: InstanceDescription) -> Iterator[tuple[str, str]]:
    for rules in (description.log, *(terms.topics for terms in description.destinations)):
        for rule in rules:
            for name in exact_names(rule.name) or ():
                yield name, rule.message_type
    yield from ((topic.name, topic.message_type) for topic in description.sow)
    for queue in description.queues:
        yield queue.name, queue.message_type
        for name in exact_names(queue.underlying) or () if queue.underlying else ():
            yield name, queue.message_type


def _subjects(
    destination: DestinationTerms, upstream: InstanceDescription, downstream: InstanceDescription
) -> Iterator[tuple[_Subject, list[TopicRule]]]:
    """Yields each topic, or pair of overlapping expressions, that the upstream journals and the
    destination replicates, with the rules of the destination that apply to it."""
    log = _Rules(upstream.log, f"TransactionLog of {upstream.name}")
    mine = _Rules(destination.topics, f"Destination {destination.name} of {upstream.name}")
    seen: set[_Subject] = set()
    ours = InstanceDescription(upstream.name, upstream.group, (), (destination,))
    for name, kind in sorted({*_names(upstream), *_names(downstream), *_names(ours)}):
        literals, expressions = log.matching(_Subject(name, "", kind))
        for entry in literals + expressions:
            logged = _meet(kind, entry.message_type)
            assert logged is not None
            for rule in mine.of(_Subject(name, "", logged)):
                both = _meet(logged, rule.message_type)
                assert both is not None
                subject = _Subject(name, "", both)
                if subject not in seen:
                    seen.add(subject)
                    yield subject, mine.of(subject)
    for rule, _ in mine.expressions:
        for entry, _ in log.expressions:
            if exact_names(rule.name) or exact_names(entry.name):
                continue  # The names are known, and were checked one by one.
            both = _meet(rule.message_type, entry.message_type)
            if both is not None and may_overlap(rule.name, entry.name):
                yield _Subject(rule.name, entry.name, both), [rule]


class _Validation:
    """The checks, one method each: for a topic, a method returns what is wrong as text; empty:
    nothing."""

    def __init__(
        self,
        destination: DestinationTerms,
        upstream: InstanceDescription,
        downstream: InstanceDescription,
    ) -> None:
        self._destination = destination
        self._upstream = upstream
        self._downstream = downstream
        where = f"of {downstream.name}"
        self._taken = _Rules(destination.topics, f"Destination {destination.name}")
        self._log = _Rules(downstream.log, f"TransactionLog {where}")
        self._onward = [
            (terms, _Rules(terms.topics, f"Destination {terms.name} {where}"))
            for terms in downstream.destinations
        ]
        reaching = [terms for terms in downstream.destinations if _reaches(terms, upstream)]
        named = [t for t in reaching if upstream.name in (*t.servers, t.name)]
        back = named or reaching
        self._back = [(terms, rules) for terms, rules in self._onward if terms in back]
        self._sow_here = _by_name(upstream.sow)
        self._sow_there = _by_name(downstream.sow)
        self._queues_here = _by_name(upstream.queues)
        self._queues_there = _by_name(downstream.queues)
        self._checks: dict[str, Callable[[_Subject, TopicRule], str]] = {
            "txlog": self._txlog,
            "replicate": self._replicate,
            "sow": self._sow,
            "cascade": self._cascade,
            "queue": self._queue,
            "keys": self._keys,
            "replicate_filter": self._replicate_filter,
            "queue_passthrough": self._queue_passthrough,
            "queue_underlying": self._queue_underlying,
        }

    def run(self, name: str, subject: _Subject, rule: TopicRule) -> str:
        """Returns what is wrong and what to change; empty: nothing."""
        text = self._checks[name](subject, rule)
        if not text or name in ALWAYS_CHECKED:
            return text
        return (
            f"{text}, or exclude {name} for Topic {rule.name!r} of Destination "
            f"{self._destination.name!r} at {self._upstream.name}"
        )

    def _txlog(self, subject: _Subject, rule: TopicRule) -> str:
        if self._log.cover(subject):
            return ""
        here = self._downstream.name
        return (
            f"{self._upstream.name} replicates {subject} to {here}, which does not log it: add a "
            f"Topic for it to the TransactionLog of {here}"
        )

    def _replicate(self, subject: _Subject, rule: TopicRule) -> str:
        if any(rules.cover(subject) for _, rules in self._back):
            return ""
        here, there = self._downstream.name, self._upstream.name
        group = self._upstream.group
        elsewhere = [terms.name for terms, _ in self._onward if terms.group == group]
        if self._back:
            change = f"add a Topic for it to Destination {self._back[0][0].name!r} of {here}"
        elif elsewhere:
            change = f"add {there} to the servers of Destination {elsewhere[0]!r} of {here}"
        else:
            change = f"give {here} a Destination to Group {group!r}"
        return f"{there} replicates {subject} to {here}, which does not replicate it back: {change}"

    def _cascade(self, subject: _Subject, rule: TopicRule) -> str:
        here = self._downstream.name
        for terms, rules in self._onward:
            for onward in rules.of(subject):
                missing = enforced(rule) - enforced(onward)
                if missing:
                    shown = ", ".join(name for name in CHECKS if name in missing)
                    return (
                        f"{self._upstream.name} enforces {shown} for {subject}, but {here} does "
                        f"not for Topic {onward.name!r} of its Destination {terms.name!r}: "
                        f"enforce {shown} there"
                    )
        return ""

    def _sow(self, subject: _Subject, rule: TopicRule) -> str:
        mine, theirs = self._sow_of(subject)
        if mine is None or theirs is not None:
            return ""
        here = self._downstream.name
        return (
            f"{subject.name} ({mine.message_type}) is a SOW/Topic at {self._upstream.name} and "
            f"none at {here}: declare it in the SOW of {here}"
        )

    def _keys(self, subject: _Subject, rule: TopicRule) -> str:
        mine, theirs = self._sow_of(subject)
        if mine is None or theirs is None or mine.keys == theirs.keys:
            return ""
        return (
            f"the keys of SOW/Topic {subject.name} ({mine.message_type}) are "
            f"{_listed(mine.keys)} at {self._upstream.name} and {_listed(theirs.keys)} at "
            f"{self._downstream.name}: give both the same Key elements"
        )

    def _sow_of(self, subject: _Subject) -> tuple[SowTerms | None, SowTerms | None]:
        if not subject.is_literal:
            return None, None
        mine = next(
            (
                topic
                for topic in self._sow_here.get(subject.name, ())
                if _meet(topic.message_type, subject.message_type)
            ),
            None,
        )
        theirs = mine and next(
            (
                topic
                for topic in self._sow_there.get(mine.name, ())
                if topic.message_type == mine.message_type
            ),
            None,
        )
        return mine, theirs

    def _queue_of(self, subject: _Subject) -> tuple[QueueTerms | None, QueueTerms | None]:
        """Returns the queue upstream that needs a queue downstream, and that queue; None for each
        where there is none."""
        if not subject.is_literal:
            return None, None
        for mine in self._queues_here.get(subject.name, ()):
            if mine.kind == "local" or not _meet(mine.message_type, subject.message_type):
                continue
            domain = mine.domain or self._upstream.group
            theirs = next(
                (
                    queue
                    for queue in self._queues_there.get(mine.name, ())
                    if (queue.message_type, queue.kind) == (mine.message_type, mine.kind)
                    and (
                        queue.kind != "group_local"
                        or (queue.domain or self._downstream.group) == domain
                    )
                ),
                None,
            )
            # A group-local queue is shared among the instances that define it, within its domain.
            if (
                mine.kind == "group_local"
                and theirs is None
                and self._downstream.group != self._upstream.group
            ):
                continue
            return mine, theirs
        return None, None

    def _queue(self, subject: _Subject, rule: TopicRule) -> str:
        mine, theirs = self._queue_of(subject)
        if mine is None or theirs is not None:
            return ""
        here = self._downstream.name
        element = "Queue" if mine.kind == "queue" else "GroupLocalQueue"
        return (
            f"{mine.name} ({mine.message_type}) is a {element} at {self._upstream.name} and none "
            f"at {here}: declare it at {here}, or take it out of Destination "
            f"{self._destination.name!r}"
        )

    def _queue_underlying(self, subject: _Subject, rule: TopicRule) -> str:
        mine, theirs = self._queue_of(subject)
        if mine is None or theirs is None:
            return self._queue_left_out(subject)
        topic = mine.underlying or mine.name
        if not self._takes_some(topic, mine.message_type):
            return (
                f"{mine.name} ({mine.message_type}) is a queue of {self._upstream.name} and "
                f"{self._downstream.name} over {topic!r}, which Destination "
                f"{self._destination.name!r} of {self._upstream.name} does not take: add a Topic "
                "for it there"
            )
        for element, one, other in (
            ("UnderlyingTopic", mine.underlying or mine.name, theirs.underlying or theirs.name),
            ("Filter", mine.filter.strip(), theirs.filter.strip()),
            ("InitialOwner", mine.initial_owner, theirs.initial_owner),
        ):
            if one != other:
                return (
                    f"the {element} of queue {mine.name} ({mine.message_type}) is {one!r} at "
                    f"{self._upstream.name} and {other!r} at {self._downstream.name}: write the "
                    "same at both"
                )
        return ""

    def _queue_left_out(self, subject: _Subject) -> str:
        """Checks that a topic is not brought alone when both sides have a queue over it: the
        queue's own records must be brought as well."""
        if not subject.is_literal:
            return ""
        for mine in self._upstream.queues:
            if mine.underlying != subject.name or mine.name == subject.name:
                continue
            named = _Subject(mine.name, "", mine.message_type)
            shared, theirs = self._queue_of(named)
            if shared is None or theirs is None or self._taken.of(named):
                continue
            return (
                f"{subject.name} is what {mine.name} ({mine.message_type}) is a queue over at "
                f"{self._upstream.name} and {self._downstream.name}, and Destination "
                f"{self._destination.name!r} of {self._upstream.name} does not take "
                f"{mine.name!r}: add a Topic for it there"
            )
        return ""

    def _takes_some(self, topic: str, message_type: str) -> bool:
        """Returns whether the destination takes the messages of a topic, or some that an expression
        matches."""
        if not is_regex(topic):
            return bool(self._taken.of(_Subject(topic, "", message_type)))
        return any(
            _meet(rule.message_type, message_type) and may_overlap(rule.name, topic)
            for rule in self._destination.topics
        )

    def _queue_passthrough(self, subject: _Subject, rule: TopicRule) -> str:
        mine, _ = self._queue_of(subject)
        if mine is None:
            return ""
        group = self._upstream.group
        here = self._downstream.name
        for terms, rules in self._onward:
            if not rules.of(subject) or self._is_only(terms):
                continue
            if mine.kind == "group_local" and not mine.domain and terms.group != group:
                continue  # The instances of that destination do not share the queue.
            passing = terms.pass_through
            if passing is None or not compile_regex(passing, "PassThrough").search(group):
                return (
                    f"{mine.name} is a queue, and Destination {terms.name!r} of {here} does not "
                    f"pass on what came from group {group!r}: let its PassThrough match that group"
                )
        return ""

    def _is_only(self, terms: DestinationTerms) -> bool:
        """Returns whether a destination leads to the upstream instance alone: messages from there
        are never sent back."""
        name = self._upstream.name
        return terms.servers == (name,) or (not terms.servers and terms.name == name)

    def _replicate_filter(self, subject: _Subject, rule: TopicRule) -> str:
        wanted = rule.filter.strip()
        if not wanted:
            return ""
        for terms, rules in self._back:
            for back in rules.of(subject):
                if back.filter.strip() != wanted:
                    has = f"uses {back.filter!r}" if back.filter.strip() else "uses none"
                    return (
                        f"{self._upstream.name} replicates {subject} with Filter {rule.filter!r}, "
                        f"and Destination {terms.name!r} of {self._downstream.name} {has} for "
                        "replication back: write the same Filter there"
                    )
        return ""


def _reaches(terms: DestinationTerms, upstream: InstanceDescription) -> bool:
    if terms.group != upstream.group:
        return False
    return not terms.servers or upstream.name in terms.servers


def _by_name(definitions: Iterable[Definition]) -> dict[str, list[Definition]]:
    found: dict[str, list[Definition]] = {}
    for definition in definitions:
        found.setdefault(definition.name, []).append(definition)
    return found


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "none"
