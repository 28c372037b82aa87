"""The modules of actions for scripts: `On`, `If` and `Do` (docs/actions.md).

Written by `make action-modules` from the table in services/actions/modules.py: change that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raylay.services.actions.model import ActionModule
from raylay.services.configuration.actions import used_module


class On:
    """The modules that start an action."""

    @staticmethod
    def schedule(every: str, *, name: str | None = None) -> ActionModule:
        """Starts the action at an interval, or at a time of the day or week.

        Args:
            every: `4h`, `00:32`, `Saturday at 11:00`; Z behind it: UTC.
            name: name in the log; default: unknown.
        """
        return used_module("on", "schedule", every=every, name=name)

    @staticmethod
    def startup() -> ActionModule:
        """Starts the action when the instance has started and serves clients."""
        return used_module("on", "startup")

    @staticmethod
    def shutdown() -> ActionModule:
        """Starts the action before the instance stops, while it still serves clients."""
        return used_module("on", "shutdown")

    @staticmethod
    def signal(signal: str) -> ActionModule:
        """Starts the action when the instance's process gets a signal.

        Args:
            signal: name of the signal, such as `SIGUSR1`.
        """
        return used_module("on", "signal", signal=signal)

    @staticmethod
    def admin(
        path: str,
        *,
        required_parameter: Sequence[str] | str | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> ActionModule:
        """Starts the action when a request comes to `/amps/administrator/actions/PATH`. Parameters
        of the request are variables.

        Args:
            path: last part of the path, without `/`.
            required_parameter: parameter without which a request is refused.
            name: name in the list of resources.
            description: description in the list of resources.
        """
        return used_module(
            "on",
            "admin",
            path=path,
            required_parameter=required_parameter,
            name=name,
            description=description,
        )

    @staticmethod
    def connect_client() -> ActionModule:
        """Starts the action when a client connects."""
        return used_module("on", "connect-client")

    @staticmethod
    def disconnect_client() -> ActionModule:
        """Starts the action when a client is gone."""
        return used_module("on", "disconnect-client")

    @staticmethod
    def logon_client() -> ActionModule:
        """Starts the action when a client has logged on."""
        return used_module("on", "logon-client")

    @staticmethod
    def offline_start() -> ActionModule:
        """Starts the action when the messages for a slow client begin to go to the disk."""
        return used_module("on", "offline-start")

    @staticmethod
    def offline_stop() -> ActionModule:
        """Starts the action when a slow client has read what was on the disk for it."""
        return used_module("on", "offline-stop")

    @staticmethod
    def subscribe(*, topic: str | None = None, message_type: str | None = None) -> ActionModule:
        """Starts the action when a client subscribes.

        Args:
            topic: topic, or regular expression over topics.
            message_type: message type of the topic.
        """
        return used_module("on", "subscribe", topic=topic, message_type=message_type)

    @staticmethod
    def unsubscribe(*, topic: str | None = None, message_type: str | None = None) -> ActionModule:
        """Starts the action when a subscription ends.

        Args:
            topic: topic, or regular expression over topics.
            message_type: message type of the topic.
        """
        return used_module("on", "unsubscribe", topic=topic, message_type=message_type)

    @staticmethod
    def connect_incoming_replication() -> ActionModule:
        """Starts the action when another instance's link connects to this instance."""
        return used_module("on", "connect-incoming-replication")

    @staticmethod
    def disconnect_incoming_replication() -> ActionModule:
        """Starts the action when another instance's link to this instance is gone."""
        return used_module("on", "disconnect-incoming-replication")

    @staticmethod
    def connect_replication() -> ActionModule:
        """Starts the action when a link of this instance has connected."""
        return used_module("on", "connect-replication")

    @staticmethod
    def disconnect_replication() -> ActionModule:
        """Starts the action when a link of this instance has lost its connection."""
        return used_module("on", "disconnect-replication")

    @staticmethod
    def replication_resync_complete() -> ActionModule:
        """Starts the action when a link has sent what its destination lacked."""
        return used_module("on", "replication-resync-complete")

    @staticmethod
    def upgrade_replication() -> ActionModule:
        """Starts the action when a destination counts for acknowledgments again."""
        return used_module("on", "upgrade-replication")

    @staticmethod
    def downgrade_replication() -> ActionModule:
        """Starts the action when a destination no longer counts for acknowledgments."""
        return used_module("on", "downgrade-replication")

    @staticmethod
    def publish_message(
        topic: str,
        message_type: str,
        *,
        message_source: str | None = None,
        filter: str | None = None,
        options: str | None = None,
    ) -> ActionModule:
        """Starts the action when a message is published, by a client or by replication. Not for
        queues.

        Args:
            topic: topic, or regular expression over topics.
            message_type: message type of the topic.
            message_source: where the message was published: at this instance, or at another one
                (all, local, replicated); default: all.
            filter: content filter that messages must pass.
            options: options of the subscription: `delta`, `select=[-/,+/id]`.
        """
        return used_module(
            "on",
            "publish-message",
            topic=topic,
            message_type=message_type,
            message_source=message_source,
            filter=filter,
            options=options,
        )

    @staticmethod
    def deliver_message(topic: str, message_type: str) -> ActionModule:
        """Starts the action when a message is delivered to a client, once for each.

        Args:
            topic: topic, or regular expression over topics.
            message_type: message type of the topic.
        """
        return used_module("on", "deliver-message", topic=topic, message_type=message_type)

    @staticmethod
    def sow_expire_message(
        topic: str, message_type: str, *, reason: str | None = None
    ) -> ActionModule:
        """Starts the action when a message leaves a SOW topic, or a queue, because it expires.

        Args:
            topic: topic.
            message_type: message type of the topic.
            reason: reasons, with commas between them, of which one must be the message's
                (time_limit, forced_expire, max_cancels, max_deliveries).
        """
        return used_module(
            "on", "sow-expire-message", topic=topic, message_type=message_type, reason=reason
        )

    @staticmethod
    def sow_delete_message(topic: str, message_type: str) -> ActionModule:
        """Starts the action when a message leaves a SOW topic, or a queue, because it is deleted
        or acknowledged.

        Args:
            topic: topic.
            message_type: message type of the topic.
        """
        return used_module("on", "sow-delete-message", topic=topic, message_type=message_type)

    @staticmethod
    def oof_message(
        topic: str, message_type: str, *, filter: str | None = None, type: str | None = None
    ) -> ActionModule:
        """Starts the action when a record no longer matches a filter, is deleted, or expires.

        Args:
            topic: topic, or regular expression over topics.
            message_type: message type of the topic.
            filter: content filter that messages must pass.
            type: why the record went out of focus (match, delete, expire, all); default: all.
        """
        return used_module(
            "on", "oof-message", topic=topic, message_type=message_type, filter=filter, type=type
        )

    @staticmethod
    def message_condition_timeout(
        topic: str, message_type: str, duration: str, *, filter: str | None = None
    ) -> ActionModule:
        """Starts the action when a record of a SOW topic has matched a filter for some time; once
        for each record.

        Args:
            topic: topic.
            message_type: message type of the topic.
            duration: time for which the record must match.
            filter: content filter that messages must pass.
        """
        return used_module(
            "on",
            "message-condition-timeout",
            topic=topic,
            message_type=message_type,
            duration=duration,
            filter=filter,
        )

    @staticmethod
    def alert(
        topic: str,
        message_type: str,
        duration: str,
        *,
        filter: str | None = None,
        event_variable: str | None = None,
        oof_event: str | None = None,
        timeout_event: str | None = None,
    ) -> ActionModule:
        """Starts the action when a record has matched a filter for some time, or no longer matches
        it before that: one of the two for each record.

        Args:
            topic: topic.
            message_type: message type of the topic.
            duration: time for which the record must match.
            filter: content filter that messages must pass.
            event_variable: variable that gets the name of the event.
            oof_event: name of the event of a record that no longer matches.
            timeout_event: name of the event of a record that matched too long.
        """
        return used_module(
            "on",
            "alert",
            topic=topic,
            message_type=message_type,
            duration=duration,
            filter=filter,
            event_variable=event_variable,
            oof_event=oof_event,
            timeout_event=timeout_event,
        )

    @staticmethod
    def execute_event(event: str) -> ActionModule:
        """Starts the action when a step of an action raises an event of this name. The variables
        are those of that action.

        Args:
            event: name of the event.
        """
        return used_module("on", "execute-event", event=event)


class If:
    """The conditions without which an action does not go on."""

    @staticmethod
    def condition(condition: str) -> ActionModule:
        """Goes on if an expression is true.

        Args:
            condition: expression, after its variables are expanded.
        """
        return used_module("if", "condition", condition=condition)

    @staticmethod
    def file_system_usage(path: str, greater_than: str) -> ActionModule:
        """Goes on if a file system is fuller than a share of it.

        Args:
            path: path in the file system.
            greater_than: share, such as `90%`.
        """
        return used_module("if", "file-system-usage", path=path, greater_than=greater_than)


class Do:
    """The steps of an action."""

    @staticmethod
    def rotate_logs() -> ActionModule:
        """Closes the log files and begins new ones."""
        return used_module("do", "rotate-logs")

    @staticmethod
    def compress_files(
        age: str, pattern: str, *, keep: int | None = None, count: int | None = None
    ) -> ActionModule:
        """Compresses old files, never journals or what is open.

        Args:
            age: age from which on it is done.
            pattern: files, as a shell matches them.
            keep: number of the newest files that stay as they are.
            count: most files at one time.
        """
        return used_module("do", "compress-files", age=age, pattern=pattern, keep=keep, count=count)

    @staticmethod
    def remove_files(
        age: str, pattern: str, *, keep: int | None = None, count: int | None = None
    ) -> ActionModule:
        """Removes old files, never journals or what is open.

        Args:
            age: age from which on it is done.
            pattern: files, as a shell matches them.
            keep: number of the newest files that stay as they are.
            count: most files at one time.
        """
        return used_module("do", "remove-files", age=age, pattern=pattern, keep=keep, count=count)

    @staticmethod
    def truncate_statistics(age: str) -> ActionModule:
        """Removes old samples from the statistics database.

        Args:
            age: age from which on it is done.
        """
        return used_module("do", "truncate-statistics", age=age)

    @staticmethod
    def archive_journal(age: str) -> ActionModule:
        """Moves old journal segments to the archive directory.

        Args:
            age: age from which on it is done.
        """
        return used_module("do", "archive-journal", age=age)

    @staticmethod
    def compress_journal(age: str) -> ActionModule:
        """Compresses old journal segments.

        Args:
            age: age from which on it is done.
        """
        return used_module("do", "compress-journal", age=age)

    @staticmethod
    def remove_journal(age: str) -> ActionModule:
        """Removes old journal segments that nothing needs any more.

        Args:
            age: age from which on it is done.
        """
        return used_module("do", "remove-journal", age=age)

    @staticmethod
    def delete_sow(topic: str, message_type: str, filter: str) -> ActionModule:
        """Deletes the records of SOW topics that pass a filter.

        Args:
            topic: topic, or regular expression over topics.
            message_type: message type of the topic.
            filter: content filter of the records to delete.
        """
        return used_module(
            "do", "delete-sow", topic=topic, message_type=message_type, filter=filter
        )

    @staticmethod
    def compact_sow(*, topic: str | None = None, message_type: str | None = None) -> ActionModule:
        """Gives the room of deleted records back: of one SOW topic, or of all.

        Args:
            topic: topic.
            message_type: message type of the topic.
        """
        return used_module("do", "compact-sow", topic=topic, message_type=message_type)

    @staticmethod
    def query_sow(
        topic: str,
        message_type: str,
        capture_data: str,
        *,
        filter: str | None = None,
        default_data: str | None = None,
        order_by: str | None = None,
        options: str | None = None,
    ) -> ActionModule:
        """Reads the first record of a query into a variable.

        Args:
            topic: topic.
            message_type: message type of the topic.
            capture_data: variable that gets the record.
            filter: content filter that messages must pass.
            default_data: text that the variable gets where no record is found.
            order_by: order, as of a query.
            options: options of the query.
        """
        return used_module(
            "do",
            "query-sow",
            topic=topic,
            message_type=message_type,
            capture_data=capture_data,
            filter=filter,
            default_data=default_data,
            order_by=order_by,
            options=options,
        )

    @staticmethod
    def enable_authentication() -> ActionModule:
        """Enforces authentication again."""
        return used_module("do", "enable-authentication")

    @staticmethod
    def disable_authentication() -> ActionModule:
        """Lets everybody in without authentication, until it is enabled."""
        return used_module("do", "disable-authentication")

    @staticmethod
    def reset_authentication(
        *, transport: str | None = None, authentication_id: str | None = None
    ) -> ActionModule:
        """Has modules of authentication forget what they know, and asks again.

        Args:
            transport: transport; without one: all.
            authentication_id: user; without one: all.
        """
        return used_module(
            "do", "reset-authentication", transport=transport, authentication_id=authentication_id
        )

    @staticmethod
    def enable_entitlement() -> ActionModule:
        """Enforces entitlement again."""
        return used_module("do", "enable-entitlement")

    @staticmethod
    def disable_entitlement() -> ActionModule:
        """Lets everybody in without entitlement, until it is enabled."""
        return used_module("do", "disable-entitlement")

    @staticmethod
    def reset_entitlement(
        *, transport: str | None = None, authentication_id: str | None = None
    ) -> ActionModule:
        """Has modules of entitlement forget what they know, and asks again.

        Args:
            transport: transport; without one: all.
            authentication_id: user; without one: all.
        """
        return used_module(
            "do", "reset-entitlement", transport=transport, authentication_id=authentication_id
        )

    @staticmethod
    def enable_transport(*, transport: str | None = None) -> ActionModule:
        """Accepts connections to a transport again.

        Args:
            transport: transport; without one: all.
        """
        return used_module("do", "enable-transport", transport=transport)

    @staticmethod
    def disable_transport(*, transport: str | None = None) -> ActionModule:
        """Ends the connections to a transport and accepts no more.

        Args:
            transport: transport; without one: all.
        """
        return used_module("do", "disable-transport", transport=transport)

    @staticmethod
    def publish_message(
        topic: str,
        message_type: str,
        data: str,
        *,
        delta: bool | None = None,
        update_only: bool | None = None,
    ) -> ActionModule:
        """Publishes a message, as a client of the instance would, without asking for entitlement.

        Args:
            topic: topic.
            message_type: message type of the topic.
            data: body of the message.
            delta: whether it is a delta publish; without it: to a SOW topic it is.
            update_only: whether it must update a record; default: false.
        """
        return used_module(
            "do",
            "publish-message",
            topic=topic,
            message_type=message_type,
            data=data,
            delta=delta,
            update_only=update_only,
        )

    @staticmethod
    def downgrade_replication(age: str, *, grace_period: str | None = None) -> ActionModule:
        """Downgrades destinations by the age of their oldest unacked message.

        Args:
            age: age: destinations whose message is older than this.
            grace_period: time after the start in which nothing is done.
        """
        return used_module("do", "downgrade-replication", age=age, grace_period=grace_period)

    @staticmethod
    def upgrade_replication(age: str, *, grace_period: str | None = None) -> ActionModule:
        """Upgrades destinations by the age of their oldest unacked message.

        Args:
            age: age: destinations whose message is younger than this.
            grace_period: time after the start in which nothing is done.
        """
        return used_module("do", "upgrade-replication", age=age, grace_period=grace_period)

    @staticmethod
    def extract_values(
        message_type: str, value: Mapping[str, str] | Sequence[str] | str, data: str
    ) -> ActionModule:
        """Sets variables to fields of a message.

        Args:
            message_type: message type of the topic.
            value: `VARIABLE=expression` over the message.
            data: message to read.
        """
        return used_module(
            "do", "extract-values", message_type=message_type, value=value, data=data
        )

    @staticmethod
    def translate_data(
        data: str,
        value: str,
        *,
        case: Mapping[str, str] | Sequence[str] | str | None = None,
        default: str | None = None,
    ) -> ActionModule:
        """Sets a variable to the translation of a text.

        Args:
            data: text to translate.
            value: variable that gets the translation.
            case: `found=given`: a text and its translation.
            default: translation of every other text; without one: the text itself.
        """
        return used_module(
            "do", "translate-data", data=data, value=value, case=case, default=default
        )

    @staticmethod
    def increment_counter(key: str, value: str) -> ActionModule:
        """Adds one to a counter in memory, which begins at 0 when the instance starts.

        Args:
            key: name of the counter.
            value: variable that gets the counter.
        """
        return used_module("do", "increment-counter", key=key, value=value)

    @staticmethod
    def execute_event(event: str | None = None, event_variable: str | None = None) -> ActionModule:
        """Raises an event, which starts the actions on it.

        Args:
            event: name of the event.
            event_variable: variable that has the name of the event.
        """
        return used_module("do", "execute-event", event=event, event_variable=event_variable)

    @staticmethod
    def execute_system(command: str) -> ActionModule:
        """Runs a command of the shell, for 10 s at most.

        Args:
            command: command.
        """
        return used_module("do", "execute-system", command=command)

    @staticmethod
    def call_function(function: Callable[..., Any] | str) -> ActionModule:
        """Calls a function of Python, for 10 s at most.

        Args:
            function: `package.module:function`.
        """
        return used_module("do", "call-function", function=function)

    @staticmethod
    def enable_proxied_transfer(topic: str, message_type: str) -> ActionModule:
        """Asks other owners for messages of a queue on behalf of instances.

        Args:
            topic: topic.
            message_type: message type of the topic.
        """
        return used_module("do", "enable-proxied-transfer", topic=topic, message_type=message_type)

    @staticmethod
    def disable_proxied_transfer(topic: str, message_type: str) -> ActionModule:
        """No longer asks other owners for messages on behalf of instances.

        Args:
            topic: topic.
            message_type: message type of the topic.
        """
        return used_module("do", "disable-proxied-transfer", topic=topic, message_type=message_type)

    @staticmethod
    def shutdown() -> ActionModule:
        """Stops the instance. It stays down until it is started again."""
        return used_module("do", "shutdown")

    @staticmethod
    def nothing() -> ActionModule:
        """Does nothing."""
        return used_module("do", "nothing")

    @staticmethod
    def echo_message(message: str) -> ActionModule:
        """Writes a message to the log.

        Args:
            message: message.
        """
        return used_module("do", "echo-message", message=message)
