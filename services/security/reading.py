"""Entitlement of a session's reads: each subscription and query is restricted before it runs."""

from __future__ import annotations

from typing import NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.security.permissions import Permissions, restricted
from raylay.services.security.publishing import NOT_ENTITLED


class ReadRequest(NamedTuple):
    """A client's subscription or query.

    Attributes:
        topic: name of a topic or a queue.
        filter: valid content filter, or empty.
        may_select: whether fields can be left out of the sent messages.
        conflation_key: fields by whose values messages replace one another.
    """

    topic: str
    filter: str = ""
    select: str = ""
    order_by: str = ""
    may_select: bool = True
    conflation_key: tuple[str, ...] = ()


class RestrictedRead(NamedTuple):
    """The restricted read that is performed instead."""

    filter: str
    select: str


def reading(permissions: Permissions, user: str, wish: ReadRequest) -> RestrictedRead:
    """Returns the restricted read for a request.

    Where only some fields may be read, filters, orders and conflation keys may not use the others,
    because the result would reveal them.

    Raises:
        RemoteProtocolError: with reason `not_entitled`.
    """
    who = user or "this client"
    shown = repr(wish.topic[:200])
    grant = permissions.read(wish.topic.encode())
    if not grant.allowed:
        raise RemoteProtocolError(f"{who} may not read {shown}", NOT_ENTITLED)
    if not grant.select:
        return RestrictedRead(restricted(wish.filter, grant), wish.select)
    if not wish.may_select:
        raise RemoteProtocolError(
            f"{who} may read some fields of {shown} only, and they can be had by a query or an "
            "ordinary subscription, not so",
            NOT_ENTITLED,
        )
    if wish.filter or wish.select or wish.order_by or wish.conflation_key:
        raise RemoteProtocolError(
            f"{who} may read some fields of {shown} only: leave out filter, select, order_by and "
            "conflation_key",
            NOT_ENTITLED,
        )
    return RestrictedRead(grant.filter, grant.select)


def readable(permissions: Permissions, topic: bytes) -> bool:
    """Returns whether a topic may be read without restrictions. A regular expression matches these,
    and the topics of which some messages may be read (row_filters.py); a topic of which only some
    fields may be read must be asked for by its name."""
    return permissions.read(topic).is_whole
