"""The order in which an instance lets connections in, and takes what links bring.

**A client logs on** (`log_client_on`):

1. It is asked whether the instance admits anybody now, and this one.
2. The older connection of its name is ended: the machine hears that it has left before the newer
   one logs on.
3. The machine logs it on, and it is answered in the same turn: what it is told is durable, and
   where it may fail over to, is as of one moment.

**The link of another instance logs on** (`UpstreamCycle`):

1. What it tells of moved instances is learnt, by the shell: it is on the disk before it counts.
2. `refusal`: nothing is written for a link that is refused anyway.
3. Its epoch is written down, by the shell.
4. `admit`: what is on the disk is taken first, for an instance that is not ready asks for all that
   it does not hold. Then it is asked again: anything may have changed meanwhile.
5. It is let in: from then on its acks wait behind the answer. Queues hear who bears its incarnation
   before its first record, then the machine's effects are performed.
6. The shell sends the answer, in several turns where it is long, and calls `answered`: the acks
   follow, and only then links of this instance may use the connection.

**It sends a batch** (`UpstreamCycle.take_batch`): what the batch needs of the journal is read
first; then is taken what an older copy of this instance had, which may end the instance; then the
records.

**A link of this instance begins** (`LinkSetup`):

1. What the destination tells of moved instances is learnt, by the shell.
2. `goes_on`: a link that is refused anyway writes nothing down.
3. The shell writes down whom it has reached.
4. `compare`: what both sides hold is compared in slices, and other work comes in between.
5. `begin`: it is asked again whether it goes on. It counts as connected, so that commits are told
   to it; what is committed is taken, else the resync would end before what is on the disk, and who
   is ready by it would lack that. Then the machine says how it begins, and whatever it is told in
   this step follows that.

The server and the simulator both run this file; what differs between them, the disk, the network
and the modules that are asked, is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from raylay.services.core.commit_cycle import CommitCycle, CommitRuntime
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Run
from raylay.services.replication.effects import Ranges, Rooted
from raylay.services.replication.instance import InstanceMachine
from raylay.services.replication.instance.publishers import Judge
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult
from raylay.services.replication.link.resync_plan import ResyncPlan
from raylay.services.replication.membership.admission import (
    LinkAdmitted,
    LinkLogon,
    LinkRefused,
    decide,
    refused_before,
)
from raylay.services.replication.values import LinkStart, LogonAnswer


# -- clients ---------------------------------------------------------------------------------------
class EnteringClient(Protocol):
    """The connection of a client that logs on.

    Attributes:
        number: of its session.
    """

    number: int

    def refusal(self) -> tuple[str, str] | None:
        """Returns why it is not let in, reason and sentence; None: it is."""

    def turn_down(self, reason: str, text: str) -> None:
        """Tells it why not, and ends the connection."""

    def displace(self) -> tuple[str, str] | None:
        """Ends the older connection of its name, if there is one; the machine hears of that before
        this returns. Returns why that one may not be ended, then this one is turned down."""

    def enter(self) -> Judge | None:
        """Counts it, and gives it its name. Returns what judges its publishes; None: nothing."""

    def logged_on(self, answer: LogonAnswer) -> None:
        """Makes it one of the sessions, and answers it."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The part of a client's logon that its publisher is found by.

    Attributes:
        name: of the client.
        low: the first sequence that it has and that may not be durable; 0: it has none.
        takes_unused: whether it goes on with what an earlier client of the name has not used.
        user: for whom the gaps of its publisher count; empty: for nobody.
    """

    name: str
    low: int
    takes_unused: bool = False
    user: str = ""


def log_client_on(machine: InstanceMachine, client: EnteringClient, said: ClientIdentity) -> None:
    """Lets a client in, or tells it why not; see the file's docstring."""
    refusal = client.refusal() or client.displace()
    if refusal is not None:
        client.turn_down(*refusal)
        return
    judge = client.enter()
    client.logged_on(
        machine.client_logged_on(
            client.number,
            said.name,
            said.low,
            judge,
            takes_unused=said.takes_unused,
            user=said.user,
        )
    )


# -- links of other instances ----------------------------------------------------------------------
class UpstreamLink(Protocol):
    """The connection of another instance's link.

    Attributes:
        number: of the connection.
    """

    number: int

    @property
    def is_open(self) -> bool:
        """Returns whether the connection is open, so that the upstream can be told anything."""

    @property
    def tells_names(self) -> bool:
        """Returns whether queues are told the name of the instance with the link's incarnation."""

    def accepted(self) -> None:
        """Notes that the link is let in: from now on its acks wait until the logon is answered."""

    def answered(self) -> None:
        """Sends the acks that waited, as the answer to the logon was sent."""

    def shows_old_copy(self) -> bool:
        """Returns whether the link is trusted when it reports that this instance is an older
        copy."""


class ReplicatedBatch(Protocol):
    """A link's batch, beside its runs and what it asks answers for (`SendBatch`)."""

    @property
    def number(self) -> int:
        """The number by which it is acknowledged."""

    @property
    def marked(self) -> bool:
        """Returns whether its link is sync."""

    @property
    def caught_up(self) -> bool:
        """Returns whether nothing is left behind it."""

    @property
    def yours(self) -> Ranges:
        """Messages that passed through this instance's incarnation, and that it did not say it
        holds."""


class NamedPeers(Protocol):
    """Whoever has to know the names of incarnations: the queues."""

    def named(self, names: dict[int, str]) -> None:
        """Tells them who bears these incarnations."""


class UpstreamCycle:
    """The order in which links of other instances are let in, and what they bring is taken; see the
    file's docstring.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        commits: takes what is on the disk.
        peers: hears who bears which incarnation.
        offer: lets links of this instance use the connections that others made.
    """

    def __init__(
        self,
        runtime: CommitRuntime,
        commits: CommitCycle,
        peers: NamedPeers,
        offer: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._commits = commits
        self._peers = peers
        self._offer = offer

    def refusal(self, logon: LinkLogon) -> LinkRefused | None:
        """Returns why a link is refused whatever epochs were seen before; None: it is not."""
        return refused_before(self._runtime.machine, logon)

    def admit(
        self, link: UpstreamLink, logon: LinkLogon, epoch_seen: int, *, is_anothers: bool = False
    ) -> LinkAdmitted | LinkRefused | None:
        """Lets in a link whose epoch is on the disk. Returns the answer to send, or the reason
        of a refusal; None: the connection is gone.

        Args:
            epoch_seen: the highest epoch of it that was on the disk before.
            is_anothers: its name or incarnation is of one who proved to be of the fabric.
        """
        runtime = self._runtime
        self._commits.catch_up()
        decided = decide(
            runtime.machine,
            link.number,
            logon,
            epoch_seen,
            is_open=link.is_open,
            is_anothers=is_anothers,
        )
        if isinstance(decided, LinkAdmitted):
            link.accepted()
            if link.tells_names:
                self._peers.named({logon.incarnation: logon.name})
            runtime.steps.perform(decided.effects)
        return decided

    def answered(self, link: UpstreamLink) -> None:
        """Notes that the answer of `admit` is sent."""
        link.answered()
        self._offer()

    def take_lacks(self, link: UpstreamLink, lacks: PublisherRanges, whole: bool) -> None:
        """Takes what a link's instance has no more, and believes to be missing here."""
        runtime = self._runtime
        runtime.steps.perform(runtime.machine.upstream_lacks(link.number, lacks, whole))

    def take_batch(
        self,
        link: UpstreamLink,
        batch: ReplicatedBatch,
        runs: list[Run],
        awaited: Rooted,
        answers: LookupResult,
        is_part: bool = False,
    ) -> LookupRequest | None:
        """Takes a batch, or a part of one. Returns what has to be read of the journal first; then
        nothing was taken, and it is called again with the answers; None: it is taken.

        Args:
            runs: of the batch, or of this part.
            awaited: the messages for which this part asks answers.
            is_part: more of the batch follows.
        """
        runtime = self._runtime
        machine = runtime.machine
        questions = machine.asks(runs, answers, awaited)
        if questions:
            return questions
        if batch.yours and link.shows_old_copy():
            runtime.steps.perform(machine.upstream_shows(link.number, batch.yours))
            if not link.is_open:
                return None
        runtime.steps.perform(
            machine.upstream_batch(
                link.number,
                batch.number,
                runs,
                batch.marked,
                awaited,
                batch.caught_up,
                runtime.steady_us(),
                answers,
                is_part,
            )
        )
        return None


# -- links of this instance ------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReachedServer:
    """The instance that a link has reached.

    Attributes:
        name: of the instance.
        incarnation: that it has now.
        generation: the number of its moves.
        address: at which it was reached; empty: it does not matter.
        client_address: at which clients reach it.
        names: digest of the publishers' names that it knows; empty: it does not say.
    """

    name: str
    incarnation: int
    generation: int
    address: str = ""
    client_address: str = ""
    names: bytes = b""


class BeginningLink(Protocol):
    """A link of this instance that has reached its destination.

    Attributes:
        name: of the destination.
    """

    name: str

    @property
    def is_served(self) -> bool:
        """Returns whether the instance serves, so that links may begin."""

    def refuse(self, why: str) -> None:
        """Tells it why it does not go on with whom it has reached."""

    def reached(self, server: ReachedServer) -> None:
        """Notes that the link counts as connected to this instance: from now on it is told of
        commits."""

    def begins(self, start: LinkStart) -> None:
        """Tells it how it begins. Whatever else it is told from now on follows that."""


class LinkSetup:
    """The order in which one link begins; see the file's docstring.

    Owner: the instance's loop. Lifecycle: one connection of the link, until it has begun.

    Args:
        commits: takes what is on the disk.
        server: that the link has reached.
        plan: what that one holds and waits for.
    """

    def __init__(
        self,
        runtime: CommitRuntime,
        commits: CommitCycle,
        link: BeginningLink,
        server: ReachedServer,
        plan: ResyncPlan,
    ) -> None:
        self._runtime = runtime
        self._commits = commits
        self._link = link
        self._server = server
        self._plan = plan

    def goes_on(self) -> bool:
        """Returns whether the link may go on with whom it has reached; else it is told why not."""
        server, link = self._server, self._link
        refused = self._runtime.machine.refuse_downstream(
            link.name, server.name, server.incarnation, server.generation, server.address
        )
        if not refused and link.is_served:
            return True
        link.refuse(refused)
        return False

    def compare(self, *slice_of: int) -> bool:
        """Compares a slice of what both sides hold. Returns whether more is left.

        Args:
            slice_of: number of ranges; not given: as many as fit a turn.
        """
        effects, more = self._runtime.machine.compare(self._link.name, self._plan, *slice_of)
        self._runtime.steps.perform(effects)
        return more

    def begin(self) -> LinkStart | None:
        """Begins the link, behind the last slice. Returns how; None: it does not, as it was learnt
        meanwhile that whom it has reached was moved."""
        if not self.goes_on():
            return None
        runtime, server, link = self._runtime, self._server, self._link
        link.reached(server)
        self._commits.catch_up()
        effects, start = runtime.machine.link_connected(
            link.name,
            server.incarnation,
            self._plan,
            runtime.steady_us(),
            server.name,
            generation=server.generation,
            address=server.address,
        )
        link.begins(start)
        runtime.steps.perform(effects)
        return start
