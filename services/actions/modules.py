"""The one table of the modules of actions: their options, and the variables that each sets
(behaviour.md 8).

Names and texts of options are the documented ones everywhere inside. Files in YAML and scripts in
Python write them in lower case with underscores (`written_name`); AMPSConfig writes a module as
`amps-action-on-publish-message`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from raylay.services.actions.model import ActionModule, Kind

TextKind = Literal[
    "text",
    "name",
    "topic",
    "topics",
    "message_type",
    "message_types",
    "interval",
    "schedule",
    "filter",
    "condition",
    "flag",
    "number",
    "percent",
    "word",
    "words",
    "variable",
    "assignment",
    "case",
    "signal",
    "path",
    "pattern",
    "function",
    "command",
]
"""Kinds of an option's text: `topic` a name, `topics` a name or a regular expression,
`filter` which messages, `condition` an expression over variables, `assignment`
`VARIABLE=expression`, `case` `found=given`, `pattern` a pattern of files as a shell
reads it, `function` `package.module:function`, `command` a command of the shell."""


@dataclass(frozen=True, slots=True)
class OptionDefinition:
    """One option of a module.

    Attributes:
        name: documented name, such as `MessageType`.
        text: kind of the option's text, which decides how it is checked.
        note: part of a sentence for the reader of the documents: what the option decides.
        required: whether the module needs it.
        repeated: whether it may be given several times.
        default: text that counts where it is not given; empty: none does.
        choices: the only texts that it may have; empty: any that `text` describes.
        refused: why `true` does not run, of a flag; empty: it does.
    """

    name: str
    text: TextKind
    note: str
    required: bool = False
    repeated: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()
    refused: str = ""

    @property
    def written_name(self) -> str:
        """Returns the name that YAML and Python have for it: `message_type` for `MessageType`."""
        return _WORD_BEGINS.sub("_", self.name).lower()


@dataclass(frozen=True, slots=True)
class ModuleDefinition:
    """One module of actions.

    Attributes:
        kind: `on`, `if` or `do`.
        module: name without its documented beginning.
        note: sentence for the reader of the documents: what the module does.
        options: its options, those that it needs first.
        variables: the variables that it sets for the steps after it, besides those that its options
            name.
        one_of: names of options of which it needs exactly one.
        refused: why it has no meaning here; empty: it runs.
        own: whether it is Raylay's own, which AMPSConfig does not have.
        never: whether what it waits for never happens here, so that it may stand in a file.
    """

    kind: Kind
    module: str
    note: str
    options: tuple[OptionDefinition, ...] = ()
    variables: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    refused: str = ""
    own: bool = False
    never: bool = False

    @property
    def documented_name(self) -> str:
        """Returns the name that AMPSConfig has for it: `amps-action-do-publish-message`."""
        return f"amps-action-{self.kind}-{self.module}"

    @property
    def written_name(self) -> str:
        """Returns the name that YAML and Python have for it: `publish_message`."""
        return self.module.replace("-", "_")

    @property
    def changes_topic(self) -> bool:
        """Returns whether it publishes to its topic, or deletes from it."""
        return self.kind == "do" and self.module in ("publish-message", "delete-sow")

    def option(self, name: str) -> OptionDefinition | None:
        """Returns the option with a documented name; None: there is none."""
        return next((each for each in self.options if each.name == name), None)


_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# -- options that several modules have ---------------------------------------------------------
_TOPICS = OptionDefinition("Topic", "topics", "topic, or regular expression over topics", True)
_TOPIC = OptionDefinition("Topic", "topic", "topic", True)
_TYPE = OptionDefinition("MessageType", "message_type", "message type of the topic", True)
_FILTER = OptionDefinition("Filter", "filter", "content filter that messages must pass")
_AGE = OptionDefinition("Age", "interval", "age from which on it is done", True)


def _may(option: OptionDefinition) -> OptionDefinition:
    return OptionDefinition(option.name, option.text, option.note)


_OF_CLIENT = ("AMPS_CLIENT_NAME", "AMPS_CONNECTION_NAME")
_OF_LOGON = (*_OF_CLIENT, "AMPS_AUTHENTICATION_ID")
_OF_PEER = (
    "AMPS_REPLICATION_PEER_NAME",
    "AMPS_REPLICATION_CLIENT_NAME",
    "AMPS_REPLICATION_REMOTE_ADDRESS",
    "AMPS_REPLICATION_GROUP_NAME",
)
_OF_LINK = (*_OF_PEER, "AMPS_REPLICATION_TRANSPORT_NAME")
_OF_DATA = ("AMPS_TOPIC", "AMPS_DATA", "AMPS_DATA_LENGTH")
_OF_MESSAGE = (*_OF_DATA, "AMPS_BOOKMARK", "AMPS_TIMESTAMP", "AMPS_CLIENT_NAME")
_OF_RECORD = (*_OF_DATA, "AMPS_SOW_KEY", "AMPS_BOOKMARK", "AMPS_TIMESTAMP")
_OF_SUBSCRIPTION = ("AMPS_TOPIC", "AMPS_CLIENT_NAME", "AMPS_OPTIONS", "AMPS_FILTER")
_NO_MINIDUMP = "Python writes no minidumps"


def _on(
    module: str,
    note: str,
    *options: OptionDefinition,
    variables: tuple[str, ...] = (),
    refused: str = "",
    never: bool = False,
) -> ModuleDefinition:
    return ModuleDefinition("on", module, note, options, variables, refused=refused, never=never)


def _if(module: str, note: str, *options: OptionDefinition) -> ModuleDefinition:
    return ModuleDefinition("if", module, note, options)


def _do(
    module: str,
    note: str,
    *options: OptionDefinition,
    one_of: tuple[str, ...] = (),
    refused: str = "",
    own: bool = False,
) -> ModuleDefinition:
    return ModuleDefinition("do", module, note, options, (), one_of, refused, own)


_option = OptionDefinition
_DURATION = _option("Duration", "interval", "time for which the record must match", True)
_TRANSPORT = _option("Transport", "name", "transport; without one: all")
_FILES = (
    _AGE,
    _option("Pattern", "pattern", "files, as a shell matches them", True),
    _option("Keep", "number", "number of the newest files that stay as they are"),
    _option("Count", "number", "most files at one time"),
)

_ON = (
    _on(
        "schedule",
        "At an interval, or at a time of the day or week.",
        _option("Every", "schedule", "`4h`, `00:32`, `Saturday at 11:00`; Z behind it: UTC", True),
        _option("Name", "text", "name in the log", default="unknown"),
    ),
    _on("startup", "When the instance has started and serves clients."),
    _on("shutdown", "Before the instance stops, while it still serves clients."),
    _on(
        "signal",
        "When the instance's process gets a signal.",
        _option("Signal", "signal", "name of the signal, such as `SIGUSR1`", True),
    ),
    _on(
        "admin",
        "When a request comes to `/amps/administrator/actions/PATH`. Parameters of the request are "
        "variables.",
        _option("Path", "name", "last part of the path, without `/`", True),
        _option(
            "RequiredParameter",
            "variable",
            "parameter without which a request is refused",
            repeated=True,
        ),
        _option("Name", "text", "name in the list of resources"),
        _option("Description", "text", "description in the list of resources"),
    ),
    _on(
        "minidump",
        "When a minidump was written.",
        variables=("AMPS_MINIDUMP_PATH",),
        refused=_NO_MINIDUMP,
        never=True,
    ),
    _on("connect-client", "When a client connects.", variables=_OF_CLIENT),
    _on("disconnect-client", "When a client is gone.", variables=_OF_LOGON),
    _on("logon-client", "When a client has logged on.", variables=_OF_LOGON),
    _on(
        "offline-start",
        "When the messages for a slow client begin to go to the disk.",
        variables=_OF_CLIENT,
    ),
    _on(
        "offline-stop",
        "When a slow client has read what was on the disk for it.",
        variables=_OF_CLIENT,
    ),
    *(
        _on(module, note, _may(_TOPICS), _may(_TYPE), variables=_OF_SUBSCRIPTION)
        for module, note in (
            ("subscribe", "When a client subscribes."),
            ("unsubscribe", "When a subscription ends."),
        )
    ),
    _on(
        "connect-incoming-replication",
        "When another instance's link connects to this instance.",
        variables=_OF_PEER,
    ),
    _on(
        "disconnect-incoming-replication",
        "When another instance's link to this instance is gone.",
        variables=_OF_PEER,
    ),
    *(
        _on(module, note, variables=_OF_LINK)
        for module, note in (
            ("connect-replication", "When a link of this instance has connected."),
            ("disconnect-replication", "When a link of this instance has lost its connection."),
            ("replication-resync-complete", "When a link has sent what its destination lacked."),
            ("upgrade-replication", "When a destination counts for acknowledgments again."),
            ("downgrade-replication", "When a destination no longer counts for acknowledgments."),
        )
    ),
    _on(
        "publish-message",
        "When a message is published, by a client or by replication. Not for queues.",
        _TOPICS,
        _TYPE,
        _option(
            "MessageSource",
            "word",
            "where the message was published: at this instance, or at another one",
            default="all",
            choices=("all", "local", "replicated"),
        ),
        _FILTER,
        _option("Options", "text", "options of the subscription: `delta`, `select=[-/,+/id]`"),
        variables=_OF_MESSAGE,
    ),
    _on(
        "deliver-message",
        "When a message is delivered to a client, once for each.",
        _TOPICS,
        _TYPE,
        variables=(*_OF_DATA, "AMPS_BOOKMARK", "AMPS_CLIENT_NAME", "AMPS_CORRELATION_ID"),
    ),
    _on(
        "message-affinity",
        "When messages of a topic are assigned to a client, or no longer are.",
        _TYPE,
        _option("ControlTopic", "topic", "topic whose messages say what is assigned", True),
        _option("DataTopic", "topic", "topic whose messages are assigned", True),
        _option("DataFilter", "filter", "content filter of the assigned messages"),
        variables=(
            "AMPS_DATA",
            "AMPS_CLIENT_NAME",
            "AMPS_AFFINITY_ACTION",
            "AMPS_AFFINITY_REASON",
        ),
        refused="records are not assigned to clients: share them by a queue",
    ),
    _on(
        "sow-expire-message",
        "When a message leaves a SOW topic, or a queue, because it expires.",
        _TOPIC,
        _TYPE,
        _option(
            "Reason",
            "words",
            "reasons, with commas between them, of which one must be the message's",
            choices=("time_limit", "forced_expire", "max_cancels", "max_deliveries"),
        ),
        variables=(*_OF_DATA, "AMPS_REASON", "AMPS_CORRELATION_ID"),
    ),
    _on(
        "sow-delete-message",
        "When a message leaves a SOW topic, or a queue, because it is deleted or acknowledged.",
        _TOPIC,
        _TYPE,
        variables=(*_OF_DATA, "AMPS_CORRELATION_ID"),
    ),
    _on(
        "oof-message",
        "When a record no longer matches a filter, is deleted, or expires.",
        _TOPICS,
        _TYPE,
        _FILTER,
        _option(
            "Type",
            "word",
            "why the record went out of focus",
            default="all",
            choices=("match", "delete", "expire", "all"),
        ),
        variables=(
            *_OF_DATA,
            "AMPS_PREVIOUS_DATA",
            "AMPS_PREVIOUS_DATA_LENGTH",
        ),
    ),
    _on(
        "message-condition-timeout",
        "When a record of a SOW topic has matched a filter for some time; once for each record.",
        _TOPIC,
        _TYPE,
        _DURATION,
        _FILTER,
        variables=_OF_RECORD,
    ),
    _on(
        "alert",
        "When a record has matched a filter for some time, or no longer matches it before that: "
        "one of the two for each record.",
        _TOPIC,
        _TYPE,
        _DURATION,
        _FILTER,
        _option("EventVariable", "variable", "variable that gets the name of the event"),
        _option("OOFEvent", "text", "name of the event of a record that no longer matches"),
        _option("TimeoutEvent", "text", "name of the event of a record that matched too long"),
        variables=_OF_RECORD,
    ),
    _on(
        "execute-event",
        "When a step of an action raises an event of this name. The variables are those of that "
        "action.",
        _option("Event", "text", "name of the event", True),
    ),
)

_IF = (
    _if(
        "condition",
        "Goes on if an expression is true.",
        _option("Condition", "condition", "expression, after its variables are expanded", True),
    ),
    _if(
        "file-system-usage",
        "Goes on if a file system is fuller than a share of it.",
        _option("Path", "path", "path in the file system", True),
        _option("GreaterThan", "percent", "share, such as `90%`", True),
    ),
)

_DO = (
    _do("rotate-logs", "Closes the log files and begins new ones."),
    _do("compress-files", "Compresses old files, never journals or what is open.", *_FILES),
    _do("remove-files", "Removes old files, never journals or what is open.", *_FILES),
    _do("truncate-statistics", "Removes old samples from the statistics database.", _AGE),
    _do(
        "vacuum-statistics",
        "Does nothing, as documented: the statistics database gives its room back by itself.",
    ),
    _do("archive-journal", "Moves old journal segments to the archive directory.", _AGE),
    _do("compress-journal", "Compresses old journal segments.", _AGE),
    _do("remove-journal", "Removes old journal segments that nothing needs any more.", _AGE),
    _do(
        "delete-sow",
        "Deletes the records of SOW topics that pass a filter.",
        _TOPICS,
        _TYPE,
        _option("Filter", "filter", "content filter of the records to delete", True),
    ),
    _do(
        "compact-sow",
        "Gives the room of deleted records back: of one SOW topic, or of all.",
        _may(_TOPIC),
        _may(_TYPE),
    ),
    _do(
        "query-sow",
        "Reads the first record of a query into a variable.",
        _TOPIC,
        _TYPE,
        _option("CaptureData", "variable", "variable that gets the record", True),
        _FILTER,
        _option("DefaultData", "text", "text that the variable gets where no record is found"),
        _option("OrderBy", "text", "order, as of a query"),
        _option("Options", "text", "options of the query"),
    ),
    *(
        module
        for what in ("authentication", "entitlement")
        for module in (
            _do(f"enable-{what}", f"Enforces {what} again."),
            _do(f"disable-{what}", f"Lets everybody in without {what}, until it is enabled."),
            _do(
                f"reset-{what}",
                f"Has modules of {what} forget what they know, and asks again.",
                _TRANSPORT,
                _option("AuthenticationId", "text", "user; without one: all"),
            ),
        )
    ),
    _do("enable-transport", "Accepts connections to a transport again.", _TRANSPORT),
    _do(
        "disable-transport",
        "Ends the connections to a transport and accepts no more.",
        _TRANSPORT,
    ),
    _do(
        "publish-message",
        "Publishes a message, as a client of the instance would, without asking for entitlement.",
        _TOPIC,
        _TYPE,
        _option("Data", "text", "body of the message", True),
        _option("Delta", "flag", "whether it is a delta publish; without it: to a SOW topic it is"),
        _option(
            "UpdateOnly",
            "flag",
            "whether it must update a record",
            default="false",
            refused="a publish creates a record where there is none",
        ),
    ),
    *(
        _do(
            f"{what}-replication",
            f"{what.capitalize()}s destinations by the age of their oldest unacked message.",
            _option("Age", "interval", f"age: destinations whose message is {which}", True),
            _option("GracePeriod", "interval", "time after the start in which nothing is done"),
        )
        for what, which in (("downgrade", "older than this"), ("upgrade", "younger than this"))
    ),
    _do(
        "extract-values",
        "Sets variables to fields of a message.",
        _TYPE,
        _option("Value", "assignment", "`VARIABLE=expression` over the message", True, True),
        _option("Data", "text", "message to read", True),
    ),
    _do(
        "translate-data",
        "Sets a variable to the translation of a text.",
        _option("Data", "text", "text to translate", True),
        _option("Value", "variable", "variable that gets the translation", True),
        _option("Case", "case", "`found=given`: a text and its translation", repeated=True),
        _option("Default", "text", "translation of every other text; without one: the text itself"),
    ),
    _do(
        "increment-counter",
        "Adds one to a counter in memory, which begins at 0 when the instance starts.",
        _option("Key", "text", "name of the counter", True),
        _option("Value", "variable", "variable that gets the counter", True),
    ),
    _do(
        "execute-event",
        "Raises an event, which starts the actions on it.",
        _option("Event", "text", "name of the event"),
        _option("EventVariable", "variable", "variable that has the name of the event"),
        one_of=("Event", "EventVariable"),
    ),
    _do(
        "execute-system",
        "Runs a command of the shell, for 10 s at most.",
        _option("Command", "command", "command", True),
    ),
    _do(
        "call-function",
        "Calls a function of Python, for 10 s at most.",
        _option("Function", "function", "`package.module:function`", True),
        own=True,
    ),
    *(
        _do(f"{what}-proxied-transfer", note, _TOPIC, _TYPE)
        for what, note in (
            ("enable", "Asks other owners for messages of a queue on behalf of instances."),
            ("disable", "No longer asks other owners for messages on behalf of instances."),
        )
    ),
    _do("minidump", "Writes a minidump.", refused=_NO_MINIDUMP),
    _do("shutdown", "Stops the instance. It stays down until it is started again."),
    _do("nothing", "Does nothing."),
    _do(
        "echo-message",
        "Writes a message to the log.",
        _option("Message", "text", "message", True),
    ),
)


MODULES: dict[tuple[Kind, str], ModuleDefinition] = {
    (each.kind, each.module): each for each in (*_ON, *_IF, *_DO)
}
"""Every module by its kind and name."""

BUILT_IN_VARIABLES = (
    "AMPS_INSTANCE_NAME",
    "AMPS_BYTE_XX",
    "AMPS_DATETIME",
    "AMPS_UNIX_TIMESTAMP",
)
"""Variables that every step has; XX stands for two hexadecimal digits."""


def definition_of(use: ActionModule) -> ModuleDefinition | None:
    """Returns the definition of a used module; None: there is no such module."""
    return MODULES.get((use.kind, use.module))


def named(kind: Kind, name: str) -> ModuleDefinition | None:
    """Returns the module with a documented name, such as `amps-action-on-startup`; None: there is
    none."""
    begin = f"amps-action-{kind}-"
    return MODULES.get((kind, name.removeprefix(begin))) if name.startswith(begin) else None


def of_kind(kind: Kind) -> tuple[ModuleDefinition, ...]:
    """Returns the modules of a kind, in the documented order."""
    return tuple(each for each in MODULES.values() if each.kind == kind)
