"""The job `audit` over the network: asks running instances instead of reading their journals.

One task reads an instance's messages over one connection. The judgement is that of the journals'
audit (judgement.py), without what an instance does not tell its clients (deliveries.py). How long a
message has been missing is not read from clocks: instances are asked again until a message may no
longer be on its way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from raylay.services.client.credentials import credentials
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.fabric.plan import FabricRecord, servers
from raylay.services.fabric.transports import client_tls
from raylay.services.messages.bookmarks import EPOCH
from raylay.services.messages.event_topics import is_event_topic
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.pipeline.audit.ages import Age, AgeQuestion, ages_of, merged
from raylay.services.pipeline.audit.deliveries import (
    SOMEWHERE,
    DeliveryStretches,
    without_order,
)
from raylay.services.pipeline.audit.job import SETTLE_S_DEFAULT
from raylay.services.pipeline.audit.judgement import (
    MAX_OWED_S_DEFAULT,
    Audit,
    Expectation,
    UnexplainedGap,
    conflicting,
    judge,
    settle,
)
from raylay.services.pipeline.audit.origins import Origin
from raylay.services.pipeline.audit.parts import LogContents, StretchParts, logs_of, open_blocks
from raylay.services.pipeline.audit.routes import expected_by
from raylay.services.pipeline.audit.sow import (
    Entries,
    SowSums,
    compare_sow,
    part_of,
    sums_of_records,
)
from raylay.services.pipeline.audit.tasks import (
    Piece,
    Progress,
    blocks_of,
    conflicts_among,
    digests_in,
    for_each,
)
from raylay.services.pipeline.journals import record_of
from raylay.services.pipeline.network.offsets import new_in
from raylay.services.pipeline.network.reading import NetworkPlace, NetworkReader
from raylay.services.pipeline.tables.columns import Rows, rows_of_deliveries
from raylay.services.pipeline.tables.stretch_rows import TaskFailure
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.query.comparison import HeldRecord, digest_of
from raylay.services.sow.records import SowRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL_TOPICS = ".*"
CONNECT_WAIT_S = 10.0
PAUSE_S = 0.1
"""Seconds between two questions to an instance that lacks messages."""


@dataclass(frozen=True, slots=True)
class AuditedInstance:
    """A running instance, and the SOW topics that it is configured to have."""

    name: str
    place: NetworkPlace
    sow: tuple[SowTopicDefinition, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceMessages:
    """The messages of one instance.

    Attributes:
        removed: those that retention has removed, in the form of the wire.
        held: everything that it had when it was asked, in the same form.
    """

    stretches: list[StretchParts]
    removed: dict[int, bytes]
    held: dict[int, bytes]


def audited_instances(record: FabricRecord, names: Sequence[str] = ()) -> list[AuditedInstance]:
    """Returns the instances of a fabric, with the user that the environment of this process gives.

    Args:
        names: only these; none: all.

    Raises:
        ConfigurationError: there is no such instance, or a file of the fabric's TLS cannot be read.
    """
    settings = FabricSettings.from_json(record.settings)
    known = {each.name: each for each in settings.instances}
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{settings.name} has no instance {name}: there are {', '.join(known)}"
            )
    tls = client_tls(settings, record.directory)
    found = []
    for server in servers(settings, record, None):
        instance = known[server.instance]
        if names and instance.name not in names:
            continue
        options = {"servers": [server], "group": instance.group, "tls": tls, **credentials()}
        topics = tuple(each for each in settings.sow_of(instance) if not is_event_topic(each.name))
        place = NetworkPlace(options, ALL_TOPICS, connect_wait_s=CONNECT_WAIT_S)
        found.append(AuditedInstance(instance.name, place, topics))
    return found


def audit_network_source(
    spark: SparkSession, source: str, instances: Sequence[str] = (), **options: Any
) -> Audit:
    """Audits a running fabric as `audit_network` does.

    Args:
        source: the fabric's directory, file or name.
        instances: only these; none: all.

    Raises:
        ConfigurationError: the source is no fabric, or has no such instance.
        RaylayError: an instance cannot be reached, or refuses this user.
    """
    record = record_of(source)
    if record is None:
        raise ConfigurationError(
            f"{source} is no fabric: an audit over the network asks the instances of a fabric; "
            "give its directory, its file or its name, or leave --network out"
        )
    settings = FabricSettings.from_json(record.settings)
    everywhere = tuple(each.name for each in settings.instances)
    found = audited_instances(record, instances)
    return audit_network(spark, found, expected_by(settings), everywhere, **options)


def audit_network(
    spark: SparkSession,
    instances: Sequence[AuditedInstance],
    why: Expectation,
    published_at: tuple[str, ...],
    *,
    settle_s: float = SETTLE_S_DEFAULT,
    max_owed_s: float = MAX_OWED_S_DEFAULT,
    progress: Progress = lambda line: None,
) -> Audit:
    """Judges the messages that instances hold now.

    Args:
        why: tells where a message should be.
        published_at: the instances at which messages may have been published.
        settle_s: most time that a message may be on its way. So long the audit waits for missing
            ones.
        max_owed_s: most time that a link may owe a message before the verdict is bad.
        progress: called with a line of text now and then.

    Raises:
        RaylayError: an instance cannot be reached, or refuses this user.
    """
    started_s = time.monotonic()
    progress(f"reading {len(instances)} instances over the network")
    run = partial(for_each, spark, progress=progress)
    read: dict[str, InstanceMessages] = dict(run(messages_of, instances))
    logs = logs_of(read, (each for one in read.values() for each in one.stretches))
    for name, one in read.items():
        logs[name].removed = PublisherRanges.from_wire(one.removed)
    found, left = judge(logs, why, {SOMEWHERE: Origin(published_at)})
    found.max_owed_s = max_owed_s
    if left:
        count = sum(each.sequences.count for each in left)
        progress(f"waiting for {count:,} missing messages, at most {settle_s:g} s")
        ages = _waited(left, instances, read, time.monotonic() + settle_s)
        owed = {
            number: AgeQuestion(each.publisher, ages[number].old)
            for number, each in enumerate(left)
            if each.reason == "owed" and ages[number].old
        }
        if owed:
            asked = [
                (instance, owed, _of_log(owed.values(), logs[instance.name]))
                for instance in instances
            ]
            for number, age in merged(run(ages_at, asked)).items():
                # The times of receipt tell how old they are; that they are old is known.
                ages[number].age_us = max(age.age_us, int(settle_s * 1e6))
        settle(found, left, ages)
    suspected = open_blocks(logs.values())
    if suspected:
        progress(f"comparing the contents of {suspected.count:,} sequences one by one")
        parts = [(each, _held_of(suspected, logs[each.name])) for each in instances]
        spread = spark.sparkContext.parallelize(parts, len(parts))
        conflicting(found, conflicts_among(spark, spread.flatMap(_pieces), progress))
    without_order(found)
    with_sow = [each for each in instances if each.sow]
    if len(with_sow) > 1:
        progress(f"comparing the SOW topics of {len(with_sow)} instances")
        now_us = time.time_ns() // 1000
        found.sow = compare_sow(with_sow, run, now_us, settle_s, sow_sums_at, sow_entries_at)
    found.seconds = time.monotonic() - started_s
    return found


# -- missing messages ------------------------------------------------------------------------------
def _waited(
    left: Sequence[UnexplainedGap],
    instances: Sequence[AuditedInstance],
    read: dict[str, InstanceMessages],
    deadline_s: float,
) -> dict[int, Age]:
    """Returns, by the number of each gap, the messages that have not come until the deadline."""
    lacking: dict[str, PublisherRanges] = {}
    for each in left:
        lacking.setdefault(each.instance, PublisherRanges()).of(each.publisher).update(
            each.sequences
        )
    wanted = [each for each in instances if each.name in lacking]
    with ThreadPoolExecutor(len(wanted)) as pool:
        came = pool.map(
            lambda each: _come(each, read[each.name].held, lacking[each.name], deadline_s), wanted
        )
        arrived = {each.name: some for each, some in zip(wanted, came, strict=True)}
    ages = {}
    for number, each in enumerate(left):
        old = each.sequences.copy()
        old.difference_update(arrived[each.instance].of(each.publisher))
        ages[number] = Age(old=old)
    return ages


def _come(
    instance: AuditedInstance,
    before: dict[int, bytes],
    lacking: PublisherRanges,
    deadline_s: float,
) -> PublisherRanges:
    """Returns what has come to an instance since it was read; as soon as nothing more can come, or
    at the deadline. What it had, and did not deliver, does not come."""
    held = PublisherRanges.from_wire(before)
    can_come = new_in(held, lacking)
    reader = NetworkReader(instance.place)
    try:
        while True:
            came = new_in(held, reader.held())
            if not new_in(came, can_come) or time.monotonic() >= deadline_s:
                return came
            # Nobody tells when replication brings what is lacking.
            time.sleep(PAUSE_S)
    finally:
        reader.close()


def _of_log(questions: Any, log: LogContents) -> dict[int, bytes]:
    wanted = PublisherRanges()
    for question in questions:
        wanted.of(question.publisher).update(question.sequences)
    return _held_of(wanted, log)


def _held_of(wanted: PublisherRanges, log: LogContents) -> dict[int, bytes]:
    """Returns those of the wanted sequences that an instance delivered, in the form of the wire."""
    found = PublisherRanges()
    for (publisher, _), here in log.topics.items():
        if publisher in wanted.sets:
            found.of(publisher).update(here.held.intersection(wanted.of(publisher)))
    return found.to_wire()


# -- in a task -------------------------------------------------------------------------------------
def messages_of(instance: AuditedInstance) -> tuple[str, InstanceMessages]:
    """Returns an instance's name and a summary of all its messages.

    Raises:
        RaylayError: the instance cannot be reached, or refuses this user.
    """
    reader = NetworkReader(instance.place)
    try:
        removed, held = reader.held(EPOCH), reader.held()
        stretches = DeliveryStretches(instance.name)
        made = []
        for rows in _rows(reader, instance.name, removed, held, new_in(removed, held)):
            if (stretch := stretches.add(rows)) is not None:
                made.append(stretch)
        made.append(stretches.finished())
    finally:
        reader.close()
    return instance.name, InstanceMessages(made, removed.to_wire(), held.to_wire())


def _rows(
    reader: NetworkReader,
    name: str,
    start: PublisherRanges,
    end: PublisherRanges,
    portion: PublisherRanges,
) -> Iterator[Rows]:
    for _, deliveries in reader.read(start, end, portion, fails=False):
        yield rows_of_deliveries(name, deliveries)


def _some_rows(instance: AuditedInstance, wire: dict[int, bytes]) -> Iterator[Rows]:
    """Yields some messages of an instance."""
    portion = PublisherRanges.from_wire(wire)
    if not portion:
        return
    reader = NetworkReader(instance.place)
    try:
        yield from _rows(reader, instance.name, PublisherRanges(), portion, portion)
    finally:
        reader.close()


def ages_at(
    asked: tuple[AuditedInstance, dict[int, AgeQuestion], dict[int, bytes]],
) -> dict[int, Age]:
    """Returns the ages of missing messages, by the time of receipt of the delivery that has them at
    an instance: at most that of its first message. Clocks are taken to be right."""
    instance, questions, wire = asked
    gathered: list[tuple[Any, Any, Any]] = []
    for rows in _some_rows(instance, wire):
        times_us = np.array([time_us for _, _, time_us in rows.runs()], np.int64)
        headers = rows.headers
        sequences = headers["sequence"].astype(np.int64)
        gathered.append((headers["publisher"], sequences, times_us[rows.run]))
    if not gathered:
        return {}
    columns = (np.concatenate(each) for each in zip(*gathered, strict=True))
    return ages_of(questions, time.time_ns() // 1000, 0, *columns)


def _pieces(part: tuple[AuditedInstance, dict[int, bytes]]) -> list[Piece]:
    instance, wire = part
    try:
        blocks = blocks_of(PublisherRanges.from_wire(wire))
        found: list[Piece] = []
        for rows in _some_rows(instance, wire):
            found += digests_in(rows.headers, blocks)
    except RaylayError as error:
        return [((0, 0), TaskFailure.of(error))]
    return found


def sow_sums_at(asked: tuple[AuditedInstance, int]) -> tuple[str, dict[str, SowSums]]:
    """Returns an instance's name and the sums of its SOW topics, as `sums_of`."""
    instance, _ = asked
    found = {}
    for topic in instance.sow:
        try:
            records = ((each.key, _held_record(each)) for each in _sow_records(instance, topic))
            found[topic.stored_as] = sums_of_records(records)
        except RaylayError as error:
            found[topic.stored_as] = SowSums(gap=str(error))
    return instance.name, found


def sow_entries_at(
    asked: tuple[AuditedInstance, dict[str, set[int]], int],
) -> tuple[str, dict[str, Entries]]:
    """Returns an instance's name and, by topic, the records in some parts of the keys, as
    `entries_of`, with the times of their publish."""
    instance, wanted, _ = asked
    return instance.name, {
        topic.stored_as: {
            each.key: (_held_record(each), each.stamp_us)
            for each in _sow_records(instance, topic)
            if part_of(each.key) in wanted[topic.stored_as]
        }
        for topic in instance.sow
        if topic.stored_as in wanted
    }


def _sow_records(instance: AuditedInstance, topic: SowTopicDefinition) -> Iterator[SowRecord]:
    reader = NetworkReader(replace(instance.place, topic=topic.name))
    try:
        for records in reader.records(topic.message_type):
            yield from records
    finally:
        reader.close()


def _held_record(record: SowRecord) -> HeldRecord:
    name = record.topic.decode("utf-8", "replace")
    digest = digest_of(record.body or b"").hex()
    return HeldRecord(name, record.publisher, record.sequence, digest)
