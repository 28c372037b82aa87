"""The SOW topics of a configuration, with installed message types and key generators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raylay.services.errors import ConfigurationError, ExpressionError, MessageTypeError
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.messages.topic_pattern import PatternError
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.key_generators import key_generator
from raylay.services.plugins.message_types import installed_types
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowState
from raylay.services.sow.topic import KeyGenerator, SowTopic
from raylay.storage.sow import MemorySowStore, SowStore


def sow_book(
    definitions: Iterable[SowTopicDefinition],
    types: Iterable[TypeDefinition],
    store: SowStore,
    generators: Mapping[str, KeyGenerator] | None = None,
    *,
    transient: SowStore | None = None,
    instance: str = "",
    group: str = "",
) -> SowBook:
    """Returns the SOW topics of an instance in their stored state, with their key generators and
    computed fields.

    Args:
        types: message types of the configuration.
        store: the stored part of the topics.
        generators: key generators by the names in definitions, in place of installed ones.
        transient: store of the topics that are in memory only; None: a new one.
        instance, group: name of the instance and of its group.

    Raises:
        ConfigurationError: a definition cannot be used; names the topic.
        CorruptRecord: an entry of the store is no record.
        StorageError: the store cannot be used.
    """
    definitions = list(definitions)
    memory = MemorySowStore() if transient is None else transient
    if not definitions:
        return SowBook()
    try:
        kinds = installed_types(types)
    except MessageTypeError as error:
        raise ConfigurationError(str(error)) from None
    topics = []
    for definition in definitions:
        held = (memory if definition.transient else store).topic(definition.stored_as)
        state = SowState(
            definition.rules,
            held,
            held.txid,
            last_writer=definition.last_writer,
            kept=not definition.transient,
        )
        where = f"SOW topic {definition.name}"
        try:
            topic = SowTopic(
                definition,
                kinds[definition.message_type],
                state,
                _generator(definition, generators or {}),
            )
            _complete(topic, EvalContext(instance=instance or None, group=group or None))
        except ExpressionError as error:
            raise ConfigurationError(f"{where}: {error.expression[:200]!r}, {error}") from None
        except (ConfigurationError, MessageTypeError, PatternError) as error:
            raise ConfigurationError(f"{where}: {error}") from None
        topics.append(topic)
    return SowBook(topics)


def _complete(topic: SowTopic, around: EvalContext) -> None:
    """Gives a SOW topic its preprocessing, its enrichment and its staging before the append."""
    # Imported late: an instance without such topics needs no language.
    from raylay.services.plugins.functions import functions
    from raylay.services.sow.enrichment import ENRICHMENT, PREPROCESSING, Enrichment
    from raylay.services.sow.staging import SowStaging

    definition, known = topic.definition, functions()
    if definition.preprocessing:
        made = Enrichment(definition.preprocessing, topic.type, known, PREPROCESSING, around)
        topic.preprocess = made
        topic.around = around if made.asks_around else None
    if definition.enrichment:
        made = Enrichment(definition.enrichment, topic.type, known, ENRICHMENT, around)
        topic.enrich = made
        topic.around = around if made.asks_around else topic.around
    topic.staging = SowStaging(topic, known)


def _generator(
    definition: SowTopicDefinition, generators: Mapping[str, KeyGenerator]
) -> KeyGenerator | None:
    name = definition.key_generator
    if not name:
        return None
    if name in generators:
        return generators[name]
    installed = key_generator(name, definition.key_generator_options)
    return lambda record, tree: installed(record.topic, record.body if tree is None else tree)
