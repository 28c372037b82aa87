"""All subscriptions of a client, as its machine keeps them: the commands to each server, and the
meaning of its answers.

A server forgets subscriptions with their connection. A subscription is wanted until the application
ends it, or a server refuses or ends it. At each logon all are requested again, paused where they
are paused, and those that were resumed together continue together.

Another filter is requested when the server has answered everything before, including the rows of a
group. Until it is accepted, the filter before holds, at the next server, too.

A server ends a subscription that its retention overtakes. Only that one is then requested again,
with its received messages, as at a logon: so the answer names the missing messages, or refuses it.

Invariant: pauses and resumes that were asked are answered once, at the latest when the connection
ends.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from raylay.services.client.events import (
    Effect,
    MessagesMissing,
    Notify,
    PauseAnswered,
    PauseWanted,
    QueryInterrupted,
    ReplaceAnswered,
    ReplaceWanted,
    ResumeWanted,
    SendFrame,
    SubscriptionAccepted,
    SubscriptionCompleted,
    SubscriptionFailed,
    SubscriptionPersisted,
    SubscriptionUnwanted,
    SubscriptionWanted,
)
from raylay.services.client.subscriptions.queries import PendingQuery
from raylay.services.client.subscriptions.subscription_state import SubscriptionState, read_have
from raylay.services.errors import (
    BookmarkNotFound,
    CommandFailed,
    LocalProtocolError,
    RaylayError,
    RemoteProtocolError,
)
from raylay.services.protocol.client.answers import OVERTAKEN
from raylay.services.protocol.frames import Header


class SubscriptionRegistry:
    """The subscriptions of a client. Owner: the client's machine, as long as it lives."""

    def __init__(self) -> None:
        self.by_id: dict[str, SubscriptionState] = {}
        self.connected = False
        """Whether a server accepts commands."""
        self.instance = ""
        """Name of the instance whose answer is handled, for events."""
        self._commands: dict[str, str] = {}
        self._command_number = 0
        # Unanswered pauses and resumes: number of the request by command id.
        self._asked: dict[str, int] = {}
        self._group_number = 0
        self._replacements: dict[str, deque[tuple[int, dict[str, Any]]]] = {}
        """Unanswered replacements by subscription, in order: number of the request, and the
        options."""
        self._replacing: dict[str, tuple[str, int]] = {}
        """Replacements that were sent: subscription and number of the request, by command id."""

    # -- connections -------------------------------------------------------------------------
    def begin(self, effects: list[Effect]) -> None:
        """Requests all subscriptions, because a server accepted the client."""
        self.connected = True
        for subscription in self.by_id.values():
            self._subscribe(subscription, effects)

    def lose(self, effects: list[Effect]) -> None:
        """Notes that the connection ended. Unanswered requests are remembered, and hold at the next
        server."""
        self.connected = False
        self._commands.clear()
        self._replacing.clear()
        for subscription in list(self.by_id.values()):
            error = subscription.lost()
            if error is not None:
                del self.by_id[subscription.id]
                effects.append(SubscriptionFailed(subscription.id, error))
                self._give_up_replacing(subscription.id, effects)
            elif isinstance(subscription, PendingQuery):
                effects.append(QueryInterrupted(subscription.id))
        effects.extend(PauseAnswered(number) for number in self._asked.values())
        self._asked.clear()

    def answered(self, header: Header, body: bytes, effects: list[Effect]) -> bool:
        """Takes an ack. Returns whether it is about subscriptions."""
        command_id = header.get("cid") or ""
        asked = self._asked.pop(command_id, None)
        if asked is not None:
            self._pause_answered(asked, header, effects)
            return True
        if command_id in self._replacing and header.get("a") == "processed":
            self._replace_answered(*self._replacing.pop(command_id), header, effects)
            return True
        found = self.by_id.get(header.get("sub") or self._commands.get(command_id, ""))
        if found is not None:
            self._subscription_ack(found, header.get("a"), header, body, effects)
        return found is not None

    # -- what the application wants, and the answers -----------------------------------------
    def wanted(self, event: SubscriptionWanted, effects: list[Effect]) -> None:
        """Adds a subscription that the application wants.

        Raises:
            LocalProtocolError: its id is in use, or its options cannot be put into a command;
                nothing was changed.
        """
        subscription = event.subscription
        if subscription.id in self.by_id:
            raise LocalProtocolError(
                f"subscription id {subscription.id!r} is in use: give each its own",
                "sub_id_in_use",
            )
        # Checked now: later, it would end the connection on which it is requested, and each one
        # after that.
        subscription.check()
        self.by_id[subscription.id] = subscription
        if self.connected:
            self._subscribe(subscription, effects)

    def unwanted(self, event: SubscriptionUnwanted, effects: list[Effect]) -> None:
        """Removes a subscription that the application does not need any more."""
        subscription = self.by_id.pop(event.subscription_id, None)
        if subscription is not None:
            self._give_up_replacing(subscription.id, effects)
        if subscription is not None and self.connected:
            header: Header = {"c": "unsubscribe", "sub": subscription.id, **event.header}
            effects.append(SendFrame(header, event.body))
            # The others of its group may have waited for it.
            self._resume_groups(effects)

    def _subscribe(self, subscription: SubscriptionState, effects: list[Effect]) -> None:
        self._command_number += 1
        command_id = f"s{self._command_number}"
        self._commands[command_id] = subscription.id
        effects.append(SendFrame(*subscription.subscribe_frame(command_id)))

    def _last_command(self, name: str) -> str:
        """Returns the id of the command that requested a subscription last."""
        return next((cid for cid in reversed(self._commands) if self._commands[cid] == name), "")

    def _replays(self, subscription_ids: tuple[str, ...]) -> list[SubscriptionState]:
        """Returns the subscriptions that can be paused.

        Raises:
            LocalProtocolError: one is unknown, ordinary or live; nothing was changed.
        """
        found = []
        for name in subscription_ids:
            subscription = self.by_id.get(name)
            if subscription is None:
                raise _ended(name)
            if not subscription.bookmark or subscription.options.get("live"):
                raise LocalProtocolError(
                    f"subscription {name!r} is {'live' if subscription.bookmark else 'ordinary'}: "
                    "only a replay of the log can be paused and resumed"
                )
            found.append(subscription)
        return found

    def pause_wanted(self, event: PauseWanted, effects: list[Effect]) -> None:
        """Pauses subscriptions.

        Raises:
            LocalProtocolError: a subscription cannot be paused; nothing was changed.
        """
        wanted = self._replays(event.subscription_ids)
        for subscription in wanted:
            subscription.paused = True
            subscription.group = 0
        told = [one for one in wanted if one.active and not one.held]
        if not told:
            effects.append(PauseAnswered(event.number))
            return
        self._asked[self._ask("pause", told, effects)] = event.number

    def resume_wanted(self, event: ResumeWanted, effects: list[Effect]) -> None:
        """Continues paused subscriptions, together.

        Raises:
            LocalProtocolError: a subscription is not paused, or cannot be; nothing was changed.
        """
        wanted = self._replays(event.subscription_ids)
        running = [one.id for one in wanted if not one.paused]
        if running:
            raise LocalProtocolError(
                f"subscription {running[0]!r} is not paused: subscribe it with pause=True, or "
                "pause it, to resume it with others"
            )
        self._group_number += 1
        for subscription in wanted:
            subscription.paused = False
            subscription.group = self._group_number if len(wanted) > 1 else 0
        if all(one.active and one.held for one in wanted):
            self._asked[self._ask("resume", wanted, effects)] = event.number
        else:
            effects.append(PauseAnswered(event.number))

    def _ask(
        self, option: str, subscriptions: list[SubscriptionState], effects: list[Effect]
    ) -> str:
        self._command_number += 1
        command_id = f"h{self._command_number}"
        for subscription in subscriptions:
            subscription.held = option == "pause"
        names = [subscription.id for subscription in subscriptions]
        effects.append(
            SendFrame({"c": "subscribe", "cid": command_id, "sub": names, "o": {option: True}})
        )
        return command_id

    def _pause_answered(self, number: int, header: Header, effects: list[Effect]) -> None:
        error: RaylayError | None = None
        if header.get("status") == "failure":
            reason = str(header.get("reason") or "refused")
            error = CommandFailed("subscribe", reason, str(header.get("text") or ""))
        effects.append(PauseAnswered(number, error))

    def replace_wanted(self, event: ReplaceWanted, effects: list[Effect]) -> None:
        """Replaces the filter, or the keys, of a subscription.

        Raises:
            LocalProtocolError: it has ended, has a bookmark, or the new options cannot be put into
                a command; nothing was changed.
        """
        name = event.subscription_id
        subscription = self.by_id.get(name)
        if subscription is None:
            raise _ended(name)
        why = subscription.irreplaceable or (
            "it has a bookmark: subscribe again, with another id" if subscription.bookmark else ""
        )
        if why:
            raise LocalProtocolError(f"{name!r} can be given no other filter: {why}")
        kept = {k: v for k, v in subscription.options.items() if k not in ("filter", "keys")}
        options = {**kept, **event.focus}
        subscription.check(options)
        self._replacements.setdefault(name, deque()).append((event.number, options))
        self._replace_next(subscription, effects)

    def _replace_next(self, subscription: SubscriptionState, effects: list[Effect]) -> None:
        """Sends the next waiting replacement of a subscription, once the server accepts it."""
        name = subscription.id
        waiting = self._replacements.get(name)
        if not waiting or not subscription.takes_replace:
            return
        number, options = waiting[0]
        if (name, number) in self._replacing.values():
            return
        self._command_number += 1
        command_id = f"r{self._command_number}"
        self._replacing[command_id] = name, number
        effects.append(SendFrame(subscription.replace_frame(command_id, options)))

    def _replace_answered(
        self, name: str, number: int, header: Header, effects: list[Effect]
    ) -> None:
        subscription, waiting = self.by_id.get(name), self._replacements.get(name)
        if subscription is None or not waiting or waiting[0][0] != number:
            return  # The application has ended the subscription meanwhile.
        _, options = waiting.popleft()
        error: RaylayError | None = None
        if header.get("status") == "failure":
            reason = str(header.get("reason") or "refused")
            error = CommandFailed(subscription.command, reason, str(header.get("text") or ""))
        else:
            subscription.replaced(options)
        effects.append(ReplaceAnswered(number, name, error))
        self._replace_next(subscription, effects)

    def _give_up_replacing(self, name: str, effects: list[Effect]) -> None:
        for number, _ in self._replacements.pop(name, ()):
            effects.append(ReplaceAnswered(number, name, _ended(name)))

    def _resume_groups(self, effects: list[Effect]) -> None:
        """After a reconnect, sends requests that were made meanwhile, and resumes subscriptions
        that continue together once all of them are accepted."""
        late = [one for one in self.by_id.values() if one.active and one.paused and not one.held]
        if late:
            self._ask("pause", late, effects)
        groups: dict[int, list[SubscriptionState]] = {}
        for one in self.by_id.values():
            if not one.paused and one.bookmark:
                groups.setdefault(one.group, []).append(one)
        for one in groups.pop(0, []):
            if one.active and one.held:
                self._ask("resume", [one], effects)
        for group in groups.values():
            if all(one.active for one in group) and any(one.held for one in group):
                self._ask("resume", [one for one in group if one.held], effects)

    def _subscription_ack(
        self,
        subscription: SubscriptionState,
        kind: object,
        header: Header,
        body: bytes,
        effects: list[Effect],
    ) -> None:
        name = subscription.id
        if header.get("status") == "failure":
            reason = str(header.get("reason") or "refused")
            if reason == OVERTAKEN:
                # The answer may be to an earlier subscription with this id, which ended before this
                # one was requested.
                if header.get("cid") == self._last_command(name):
                    subscription.lost()
                    self._subscribe(subscription, effects)
                return
            del self.by_id[name]
            text = str(header.get("text") or "")
            error = BookmarkNotFound if reason == "bookmark_not_found" else CommandFailed
            effects.append(SubscriptionFailed(name, error(subscription.command, reason, text)))
            self._give_up_replacing(name, effects)
            self._resume_groups(effects)
            return
        try:
            have = read_have(header, body)
        except RemoteProtocolError:
            have = None  # `have` only makes a resumption cheaper, so the connection can stay.
        if kind == "processed":
            later = subscription.accepted(have)
            effects.append(SubscriptionAccepted(name, have if later else None))
            self._tell_missing(subscription, header, effects)
            if subscription.bookmark:
                self._resume_groups(effects)
            self._replace_next(subscription, effects)
        elif kind == "persisted" and have is not None:
            subscription.named_persisted(have)
            effects.append(SubscriptionPersisted(name, have))
        elif kind == "completed":
            subscription.completed = True
            if subscription.bounded:
                del self.by_id[name]
            effects.append(SubscriptionCompleted(name, subscription.bounded))
            self._replace_next(subscription, effects)

    def _tell_missing(
        self, subscription: SubscriptionState, header: Header, effects: list[Effect]
    ) -> None:
        count = header.get("missing")
        if not isinstance(count, int) or not count:
            return
        event = MessagesMissing(
            subscription.id, self.instance, count, _read_missing(header.get("missing_of"))
        )
        # Each reconnect to this instance gives the same answer.
        if event != subscription.missing:
            subscription.missing = event
            effects.append(Notify(event))


def _read_missing(value: object) -> dict[int, tuple[int, int, int]]:
    if not isinstance(value, dict):
        return {}
    return {
        publisher: (told[0], told[1], told[2])
        for publisher, told in value.items()
        if isinstance(publisher, int)
        and isinstance(told, list | tuple)
        and len(told) == 3
        and all(isinstance(number, int) for number in told)
    }


def _ended(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"subscription {name!r} has ended: subscribe again", "no_such_subscription"
    )
