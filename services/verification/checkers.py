"""The laws (design.md 1) as pure functions over one history. They raise nothing: they find.

    acknowledged     1  an acked message is on disk here and along the sync links
    nothing_lost     1  what was acked is in some log at the end, unless every disk that had it died
    once             2  a journal holds a message once, a subscriber gets it once
    order            3  publisher order, unless flagged late, and late only where paths split
    removal          4  what is removed is where it was routed to
    loops            5  nothing enters an incarnation twice, nor is it sent there again
    authored         -  what an instance writes itself takes effect when it is on disk, or is undone
    state            -  what is added to a message is made of the value as staged, where it was
                        published, and once; what a state refuses is in no journal
    sow              -  a SOW topic holds what follows from its instance's journal alone
    queues           6  a message is one consumer's, at one instance; in the end all agree, and it
                        left its queue as it should (laws/queues.py)
    folds            -  what was committed is folded once, in order, behind its acks, and the state
                        before what is delivered
    routing          -  a link brings nothing that is not routed there
    liveness         7  in the end all acks are given and all logs hold what is routed to them
    unavailable      -  what is missing and removed upstream is recorded, nothing else is
    settled          -  what was durable does not wait again after a restart
    store            -  a publish store forgets only what was acked or refused
    sending          -  on a connection a client sends all that is not settled, in order, each once
    safety           -  no peer that a client was told is safe lacks what the client was acked
    failover         -  a client uses only whom all that ever spoke to it call safe
    readiness        -  an instance that lost its disk admits clients when it has what one peer of
                        its group had
    transient        -  what is in no transaction log is in no journal
    subscribers      -  a subscriber has everything of the log that it ended at
    told_missing     -  a subscriber is told what retention removed where it goes on, and no more
    retired          -  nobody who knows that an instance was moved deals with what it was before,
                        which ends when it hears of that
    fully_durable    -  a fully durable subscriber is sent nothing that is not durable then

A publish without an ack is unknown: it may be anywhere or nowhere.

Judged is what is there at that moment, not what was there once. A disk that was lost, or was moved
away, excuses what was on it as long as the link that had brought it there has not caught up with
what came in its place (`lacks` in laws/logs.py): until then nobody could know. What is routed where
is said by routing_oracle.py, which has nothing in common with what production asks.

Two contents under one identity (two clients of one name, a publisher that lost its store) are told
apart by their digests, where a history has them: an ack stands for the content that its client
published. Contents are compared where records meet, so some cases are excused: what a logon names
durable that another client of that name published there (a client that logs on shows no records);
what comes again when retention has removed what was here; what a link asks again after an upgrade
(it names ranges of what it held when it was async); and, behind the instance where a client
published one, who got another from an instance meanwhile, or held one when the link last reached
it and nobody had asked for this one: it said that it holds it, so it is asked for it by its range.
So it is where a server lost this one, which it had answered, and got the other one from a client
before the link came back.
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
    """Everything that is wrong with a history."""
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
