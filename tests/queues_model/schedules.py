"""Schedules made by hand, each for one rule: what random ones reach seldom or never."""

from __future__ import annotations

from typing import NamedTuple

PAIR, TRIANGLE, CHAIN = "AB AB", "ABC AB BC AC", "ABC AB BC"


class Schedule(NamedTuple):
    """See `exploring.play`.

    Attributes:
        catches: the mistake (mistakes.py) that it is for, if it is for one.
    """

    name: str
    topology: str
    steps: str
    catches: str = ""
    final: str = "B"
    at_most_once: bool = False
    initial_owner: str = ""
    dead: str = ""
    proxy: str = ""
    narrow: str = ""


SCHEDULES = [
    Schedule(
        "plain grant",
        PAIR,
        ("cnew.B.None pub.p.0 = tick.5 request.B = deliver.B = ack.c1 ="),
    ),
    Schedule(
        "requester dies while its request travels; others must get the message",
        TRIANGLE,
        ("cnew.B.None pub.p.0 = tick.5 request.B out.B cdie.c1 ="),
        final="C",
    ),
    Schedule(
        "requester crashes when granted, returns",
        PAIR,
        (
            "cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A commit.A "
            "crash.B fold.A"
        ),
        final="A",
    ),
    Schedule(
        "requester loses its disk when granted (grant known to the granter only)",
        PAIR,
        (
            "cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A commit.A "
            "crash.B losedisk.B fold.A"
        ),
        "the owner is an incarnation",
        final="A",
    ),
    Schedule(
        "granter loses its disk; grant known to C only",
        TRIANGLE,
        (
            "cut.A.C cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A "
            "commit.A heal.A.C conn.A.C send.A.C send.A.C recv.A.C recv.A.C commit.C "
            "crash.A losedisk.A"
        ),
        final="A",
    ),
    Schedule(
        "crossing grants of two messages",
        PAIR,
        ("pub.p.0 pub.q.1 = cnew.A.1 cnew.B.0 in.A in.B tick.5 request.A request.B ="),
    ),
    Schedule(
        "grant staged only, then crash",
        PAIR,
        ("cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A crash.A restart.A"),
        final="A",
    ),
    Schedule(
        "append of the grant fails",
        PAIR,
        ("cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A fail.A"),
        "a failed append is not undone",
    ),
    Schedule(
        "append reported as failed, there after the restart, message leased meanwhile",
        PAIR,
        (
            "cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A fail.A "
            "in.A crash.A restart.A cnew.A.None in.A fold.A conn.A.B send.A.B send.A.B "
            "recv.A.B commit.B fold.B fold.B"
        ),
    ),
    Schedule(
        "queue owner killed while its grant is on the way to the disk",
        PAIR,
        (
            "cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A qcrash.A "
            "fold.A commit.A send.A.B recv.A.B commit.B fold.B"
        ),
        "no fence",
    ),
    Schedule(
        "queue owner killed, its socket read afterwards",
        PAIR,
        (
            "cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A qcrash.A "
            "fold.A out.A commit.A send.A.B recv.A.B commit.B fold.B"
        ),
        "no fence",
    ),
    Schedule(
        "queue owner killed while a consumer holds a lease",
        PAIR,
        (
            "cnew.A.None in.A pub.p.0 commit.A fold.A deliver.A out.A qcrash.A fold.A in.A "
            "deliver.A out.A"
        ),
        "leases are not asked",
    ),
    Schedule(
        "decision made before the ack was read",
        PAIR,
        (
            "cnew.A.None in.A pub.p.0 commit.A fold.A deliver.A out.A ack.c1 tick.45 "
            "timer.A deliver.A commit.A out.A"
        ),
        "decisions are not looked up",
    ),
    Schedule(
        "lease ends in the socket",
        PAIR,
        (
            "cnew.A.0 cnew.A.0 in.A in.A pub.p.0 commit.A fold.A deliver.A tick.45 timer.A "
            "deliver.A out.A out.A"
        ),
        "leases have no end",
    ),
    Schedule(
        "cancel of an earlier lease",
        PAIR,
        (
            "cnew.A.0 in.A pub.p.0 commit.A fold.A deliver.A out.A tick.45 timer.A "
            "deliver.A cancel.c1.0 in.A cnew.A.0 in.A deliver.A out.A out.A"
        ),
        "names instead of numbers",
    ),
    Schedule(
        "draft read back before its identity was told",
        PAIR,
        ("cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A commit.A fold.A"),
        "drafts are told beside",
    ),
    Schedule(
        "two origins, partition",
        PAIR,
        ("cut.A.B pub.p.0 commit.A pfail.p.B commit.B"),
        "what is sent again is not claimed",
    ),
    Schedule(
        "two origins, no fault of a link: surplus copies are skipped",
        TRIANGLE,
        (
            "cut.A.B cut.A.C pub.p.0 commit.A pfail.p.B commit.B send.B.C send.B.C recv.B.C "
            "recv.B.C commit.C"
        ),
        "what is sent again is not claimed",
    ),
    Schedule(
        "two origins, the second crashes between message and claim",
        PAIR,
        ("cut.A.B pub.p.0 commit.A pfail.p.B crash.B restart.B pfail.p.A pfail.p.B"),
        "claimed in a later commit",
    ),
    Schedule(
        "two origins, the second loses its disk when only the message got out",
        TRIANGLE,
        (
            "cut.A.B cut.A.C pub.p.0 commit.A pfail.p.B commit.B send.B.C recv.B.C commit.C "
            "crash.B losedisk.B"
        ),
        "claimed behind the message",
    ),
    Schedule(
        "two origins, the loser holds a lease and delivers no more",
        PAIR,
        (
            "cut.A.B cnew.A.None in.A pub.p.0 commit.A fold.A deliver.A out.A pfail.p.B "
            "commit.B fold.B heal.A.B conn.A.B conn.B.A = tick.45 timer.A deliver.A "
            "cnew.B.None in.B deliver.B out.B"
        ),
    ),
    Schedule(
        "ack before its message",
        PAIR,
        (
            "cut.A.B cnew.A.None in.A pub.p.0 commit.A fold.A deliver.A "
            "out.A cjoin.c1.B ack.c1 commit.B fold.B qcrash.B fold.B heal.A.B conn.A.B "
            "conn.B.A send.A.B recv.A.B commit.B fold.B cnew.B.None in.B deliver.B"
        ),
        "made again without early entries",
    ),
    Schedule(
        "rebuild between an early ack and its message",
        PAIR,
        (
            "cut.A.B cnew.A.None in.A pub.p.0 commit.A fold.A deliver.A out.A cjoin.c1.B "
            "ack.c1 commit.B pub.q.0 commit.B heal.A.B conn.A.B send.A.B recv.A.B commit.B "
            "fold.B fold.B fold.B qcrash.B"
        ),
        "made again with early entries of now",
    ),
    Schedule(
        "early transfer forgotten by time",
        CHAIN,
        ("cut.A.B pub.p.0.0.False pfail.p.B commit.B fold.B tick.45 timer.B"),
    ),
    Schedule(
        "strict: ack at B while A leased it to another",
        PAIR,
        (
            "cnew.A.None cnew.A.None in.A in.A pub.p.0 = deliver.A out.A cjoin.c1.B in.A "
            "deliver.A out.A ack.c1 ="
        ),
        "strict in the fold",
    ),
    Schedule(
        "rolled back granter numbers again; the peer that knows is away",
        TRIANGLE,
        (
            "cut.A.C cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A "
            "commit.A fold.A send.A.B recv.A.B commit.B fold.B crash.A rollback.A.1 cut.A.B "
            "cut.B.C heal.A.C restart.A conn.A.C conn.C.A = cnew.C.None in.C = tick.9 "
            "request.C out.C recv.C.A ="
        ),
        "authors are incarnations",
        final="A",
    ),
    Schedule(
        "rolled back granter serves at once",
        TRIANGLE,
        (
            "cnew.B.None pub.p.0 = tick.5 request.B out.B recv.B.A in.A in.A out.A commit.A "
            "fold.A send.A.B recv.A.B commit.B fold.B crash.A rollback.A.1 restart.A ="
        ),
        final="A",
    ),
    Schedule(
        "a claim is no grant: its author is not the believed owner",
        PAIR,
        ("pub.p.0 pfail.p.B"),
        "transfers only from the believed owner",
    ),
    Schedule(
        "request to a stale owner over a chain",
        CHAIN,
        ("pub.p.0 = cnew.C.None in.C tick.5 request.C ="),
        "only direct owners are asked",
        final="C",
    ),
    Schedule(
        "request refused once, local consumer leaves",
        PAIR,
        (
            "cnew.B.None cnew.A.None in.A pub.p.0 commit.A send.A.B recv.A.B commit.B "
            "fold.B in.B fold.A tick.5 request.B out.B recv.B.A in.A cdie.c2"
        ),
        "only the first request counts",
    ),
    Schedule(
        "proxied claim against a grant of the same generation",
        TRIANGLE,
        (
            "pub.p.0 = cut.A.C cut.B.C cnew.B.None in.B tick.5 request.B out.B recv.B.A "
            "in.A out.A proxy.C.True cnew.C.None in.C tick.9 request.C out.C commit.C "
            "fold.C commit.A fold.A send.A.B recv.A.B commit.B fold.B deliver.C deliver.B "
            "out.B out.C"
        ),
        "the last transfer that was read",
    ),
    Schedule(
        "owner never returns: proxied transfer on one, consumer on another",
        TRIANGLE,
        ("pub.p.0 ="),
        final="C",
        dead="A",
        proxy="B",
    ),
    Schedule(
        "owner never returns: it had granted to B, who knows",
        TRIANGLE,
        ("cnew.B.None pub.p.0 = tick.5 request.B = cdie.c1"),
        final="C",
        dead="A",
        proxy="C",
    ),
    Schedule(
        "expired at the owner, new disk elsewhere",
        PAIR,
        (
            "pub.p.0.60 = tick.70 timer.A out.A = crash.B losedisk.B restart.B conn.A.B "
            "conn.B.A = cnew.B.None in.B tick.9 request.B ="
        ),
        "expiry is local",
    ),
    Schedule(
        "expired at the owner, owner gets a new disk",
        PAIR,
        (
            "pub.p.0.60 = tick.70 timer.A timer.B out.A crash.A losedisk.A restart.A "
            "conn.A.B conn.B.A = cnew.A.None in.A deliver.A out.A"
        ),
        "expiry is local",
        final="A",
    ),
    Schedule(
        "group-local: owner gets it last",
        TRIANGLE,
        ("cut.A.C pub.p.0 = pfail.p.B cnew.B.None = tick.5 request.B heal.A.C conn.A.C ="),
        initial_owner="C",
    ),
    Schedule(
        "an owner loses its disk, and is not given back what it owned",
        TRIANGLE,
        "cut.A.C pub.p.0 = pack.p crash.A losedisk.A",
        "what an owner lacks stays its own",
        narrow="messages",
    ),
    Schedule(
        "the same, and who had been granted it knew of that alone",
        TRIANGLE,
        (
            "cut.A.B pub.p.0 commit.A send.A.C recv.A.C commit.C fold.C cnew.C.None in.C tick.5 "
            "heal.A.B conn.A.B send.A.B recv.A.B commit.B fold.B cut.A.B request.C out.C recv.C.A "
            "fold.A in.A out.A commit.A fold.A send.A.C recv.A.C commit.C fold.C crash.A losedisk.A"
        ),
        narrow="all",
    ),
    Schedule(
        "a message comes to its owner's queue when it has been let go",
        PAIR,
        (
            "cnew.B.None pub.p.0 commit.A send.A.B recv.A.B commit.B fold.B in.B tick.5 timer.A "
            "request.B out.B recv.B.A in.A tick.9 timer.A request.B out.B recv.B.A in.A out.A "
            "fold.A cnew.A.None in.A deliver.A out.A commit.A send.A.B recv.A.B commit.B fold.B "
            "deliver.B"
        ),
        "what is let go is delivered when it comes",
    ),
    Schedule(
        "an acknowledgment that came before its message is removed; an empty disk gets that",
        PAIR,
        (
            "cut.A.B cnew.A.None in.A pub.p.0 commit.A fold.A deliver.A out.A cjoin.c1.B "
            "ack.c1 commit.B fold.B heal.A.B conn.B.A send.B.A recv.B.A commit.A fold.A trim.B "
            "conn.A.B send.A.B recv.A.B commit.B fold.B out.B commit.B fold.B crash.A losedisk.A"
        ),
        "what came before its message is not said again",
    ),
    Schedule(
        "the same of a claim",
        PAIR,
        (
            "cut.A.B pub.p.0.0.False pfail.p.B commit.B fold.B heal.A.B conn.B.A send.B.A "
            "recv.B.A commit.A trim.B fold.B out.B commit.B fold.B send.B.A recv.B.A commit.A "
            "crash.A losedisk.A"
        ),
        "what came before its message is not said again",
    ),
    Schedule(
        "at-most-once: killed after the send",
        PAIR,
        (
            "cnew.A.None in.A pub.p.0 commit.A fold.A deliver.A out.A qcrash.A fold.A in.A "
            "deliver.A out.A"
        ),
        "sent before it is journaled",
        at_most_once=True,
    ),
    Schedule(
        "at-most-once: resent to B, A has it",
        PAIR,
        (
            "cut.A.B cnew.A.None in.A pub.p.0 commit.A fold.A deliver.A out.A commit.A "
            "fold.A out.A pfail.p.B cnew.B.None in.B commit.B fold.B fold.B deliver.B out.B "
            "commit.B fold.B out.B"
        ),
        "at most once, and claimed",
        at_most_once=True,
    ),
    Schedule(
        "at-most-once: A never got it, B holds it for A",
        PAIR,
        ("pub.p.0.0.False pfail.p.B commit.B ="),
        at_most_once=True,
    ),
    Schedule(
        "at-most-once: resent while its owner has granted it",
        TRIANGLE,
        (
            "cut.A.B cut.B.C pub.p.0 commit.A fold.A send.A.C recv.A.C commit.C fold.C pfail.p.B "
            "commit.B cnew.C.None in.C tick.5 request.C out.C recv.C.A in.A out.A commit.A fold.A "
            "heal.A.B conn.B.A send.B.A recv.B.A commit.A fold.A send.A.C recv.A.C commit.C fold.C"
        ),
        "at most once, and named a generation higher",
        at_most_once=True,
    ),
]
