"""The laws (design.md 1) as pure functions over one history. Each returns violations and raises
nothing.

    acknowledged     1  an acked message is on disk here and along the sync links
    nothing_lost     1  an acked message is in some journal in the end, unless every disk that had
                        it was lost
    once             2  a journal holds a message once, a subscriber gets it once
    order            3  publisher order, unless flagged late, and late only where paths split
    removal          4  a message that retention removes is wherever it was routed
    loops            5  nothing enters an incarnation twice, nor is it sent there again
    authored         -  a record that an instance writes itself takes effect when it is on disk,
                        or is undone
    state            -  a publish on a topic with state is built on the value as staged, where it
                        was published, and once; a publish that a state refused is in no
                        journal
    sow              -  a SOW topic holds what follows from its instance's journal alone
    queues           6  a message belongs to one consumer, at one instance; in the end all
                        instances agree, and it left its queue for a valid reason
                        (laws/queues.py)
    folds            -  commits are folded once, in order, after their acks, and the state before
                        the deliveries
    routing          -  a link brings nothing that is not routed there
    liveness         7  in the end all acks are given and all journals hold what is routed to them
    unavailable      -  messages that are missing and removed upstream are recorded, no others
    settled          -  durable messages do not wait again after a restart
    store            -  a publish store forgets only what was acked or refused
    sending          -  on a connection a client sends all that is not settled, in order, each once
    safety           -  no peer that a client was told is safe lacks a message that the client was
                        acked
    failover         -  a client uses only instances that all others that spoke to it call safe
    readiness        -  an instance that lost its disk admits clients when it has what one peer of
                        its group had
    transient        -  a message on a topic that is not journaled is in no journal
    subscribers      -  a subscriber has everything of the journal of its last instance
    told_missing     -  a subscriber is told what retention removed where it resumes, and no more
    retired          -  an instance that knows that another one was moved ignores the former one,
                        which ends when it hears of its move
    fully_durable    -  a fully durable subscriber is sent only messages that are durable then

A publish without an ack is unknown: it may be anywhere or nowhere.

The laws judge what is there at the moment, not what was there once. A disk that was lost or moved
away is excused until the link that brought its messages there has caught up with the new one
(`lacks` in laws/logs.py): until then nobody could know. routing_oracle.py decides what is routed
where. It shares no code with production.

Two contents under one identity (two clients of one name, a publisher that lost its store) are told
apart by their digests, where a history has them: an ack stands for the content that its client
published. Contents are compared where records meet, so these cases are excused:

- a logon names durable a message that another client of the same name published there, because a
  client that logs on shows no records;
- a message comes again after retention has removed it here;
- a link asks for a message again after an upgrade, because it names ranges that it held when it was
  async;
- an instance behind the one where the client published got another content from an instance
  meanwhile, or held another one when the link last reached it: it reports that it holds the
  message, so it is asked for it by its range;
- a server lost this content after it had answered it, and got the other one from a client before
  the link came back.
"""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.verification.history import RunHistory, ServerUsed
from raylay.services.verification.laws.acks import acknowledged, nothing_lost
from raylay.services.verification.laws.journals import (
    authored,
    folds,
    liveness,
    loops,
    once,
    order,
    removal,
    routing,
    settled,
    sow,
    state,
    unavailable,
)
from raylay.services.verification.laws.publish_stores import store
from raylay.services.verification.laws.queues import queues
from raylay.services.verification.laws.serving import (
    failover,
    fully_durable,
    readiness,
    retired,
    safety,
    sending,
    subscribers,
    told_missing,
    transient,
)
from raylay.services.verification.violation import Violation

LAWS: tuple[Callable[[RunHistory], list[Violation]], ...] = (
    acknowledged,
    nothing_lost,
    once,
    order,
    removal,
    loops,
    authored,
    state,
    sow,
    queues,
    folds,
    routing,
    liveness,
    unavailable,
    settled,
    store,
    sending,
    safety,
    failover,
    readiness,
    transient,
    subscribers,
    told_missing,
    retired,
    fully_durable,
)


def check_all(history: RunHistory) -> list[Violation]:
    return [violation for law in LAWS for violation in law(history)]


__all__ = [
    "LAWS",
    "ServerUsed",
    "Violation",
    "check_all",
    "acknowledged",
    "nothing_lost",
    "once",
    "order",
    "removal",
    "loops",
    "authored",
    "sow",
    "queues",
    "state",
    "folds",
    "routing",
    "liveness",
    "unavailable",
    "settled",
    "store",
    "sending",
    "safety",
    "failover",
    "readiness",
    "transient",
    "subscribers",
    "told_missing",
    "retired",
    "fully_durable",
]
