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

from raylay.services.core.commit_cycle import CommitCycle, CommitRuntime, CommittingInstance
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
        number: number of the client's session.
    """

    number: int

    def refusal(self) -> tuple[str, str] | None:
        """Returns why the client is not let in, as a reason and a sentence; None: it is let in."""

    def turn_down(self, reason: str, text: str) -> None:
        """Tells the client why it is not let in, and ends its connection."""

    def displace(self) -> tuple[str, str] | None:
        """Ends the older connection of the client's name, if there is one; the machine hears of
        that before this returns. Returns why the older connection may not be ended, in which case
        the newer client is turned down; None: the client may log on."""

    def enter(self) -> Judge | None:
        """Counts the client, and gives its connection the client's name. Returns the judge of its
        publishes; None: its publishes are not judged."""

    def logged_on(self, answer: LogonAnswer) -> None:
        """Makes the client one of the sessions, and answers its logon."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The part of a client's logon by which its publisher is found.

    Attributes:
        name: name of the client.
        low: the first sequence that the client has and that may not be durable; 0: it has none.
        takes_unused: whether the client goes on with the sequences that an earlier client of the
            name has not used.
        user: user for whom the gaps of the client's publisher count; empty: for no user.
    """

    name: str
    low: int
    takes_unused: bool = False
    user: str = ""


def log_client_on(machine: InstanceMachine, client: EnteringClient, said: ClientIdentity) -> None:
    """Lets a client in, or tells it why it is not let in; see the file's docstring."""
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
        number: number of the connection.
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
        """Sends the acks that waited until the logon was answered."""

    def shows_old_copy(self) -> bool:
        """Returns whether the link is trusted when it reports that this instance is an older
        copy."""


class ReplicatedBatch(Protocol):
    """A batch that a link sends, without its runs and the messages that it asks answers for
    (`SendBatch`)."""

    @property
    def number(self) -> int:
        """Returns the number by which the batch is acknowledged."""

    @property
    def marked(self) -> bool:
        """Returns whether the batch's link is sync."""

    @property
    def caught_up(self) -> bool:
        """Returns whether the link has nothing left to send behind the batch."""

    @property
    def yours(self) -> Ranges:
        """Returns the messages that passed through this instance's incarnation, and that this
        instance did not report as held."""


class NamedPeers(Protocol):
    """The queues, which have to know the names of the instances with given incarnations."""

    def named(self, names: dict[int, str]) -> None:
        """Tells the queues the names of the instances with these incarnations."""


class UpstreamCycle:
    """The order in which links of other instances are let in and their batches are taken; see the
    file's docstring.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        commits: takes the commits that are on the disk.
        peers: gets the names of the instances, by incarnation.
        offer: lets links of this instance use the connections that other instances made.
    """

    def __init__(
        self,
        runtime: CommitRuntime,
        instance: CommittingInstance,
        commits: CommitCycle,
        peers: NamedPeers,
        offer: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._commits = commits
        self._peers = peers
        self._offer = offer

    def refusal(self, logon: LinkLogon) -> LinkRefused | None:
        """Returns why a link is refused whatever epochs were seen before; None: it is not
        refused."""
        return refused_before(self._instance.machine, logon)

    def admit(
        self, link: UpstreamLink, logon: LinkLogon, epoch_seen: int, *, is_anothers: bool = False
    ) -> LinkAdmitted | LinkRefused | None:
        """Lets in a link whose epoch is on the disk. Returns the answer to send, or the reason of a
        refusal; None: the connection is gone.

        Args:
            epoch_seen: the highest epoch of the link that was on the disk before.
            is_anothers: whether the link's name or incarnation belongs to another instance, which
                proved to be of the fabric.
        """
        self._commits.catch_up()
        decided = decide(
            self._instance.machine,
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
            self._instance.steps.perform(decided.effects)
        return decided

    def answered(self, link: UpstreamLink) -> None:
        """Notes that the answer of `admit` is sent."""
        link.answered()
        self._offer()

    def take_lacks(self, link: UpstreamLink, lacks: PublisherRanges, whole: bool) -> None:
        """Takes the messages that the link's instance no longer has, and believes to be missing
        here."""
        instance = self._instance
        instance.steps.perform(instance.machine.upstream_lacks(link.number, lacks, whole))

    def take_batch(
        self,
        link: UpstreamLink,
        batch: ReplicatedBatch,
        runs: list[Run],
        awaited: Rooted,
        answers: LookupResult,
        is_part: bool = False,
    ) -> LookupRequest | None:
        """Takes a batch, or a part of one. Returns what has to be read from the journal first:
        nothing was taken then, and the caller calls again with the answers. None: the batch is
        taken.

        Args:
            runs: runs of the batch, or of this part.
            awaited: the messages for which this part asks answers.
            is_part: whether more of the batch follows.
        """
        runtime = self._runtime
        machine = self._instance.machine
        questions = machine.asks(runs, answers, awaited)
        if questions:
            return questions
        if batch.yours and link.shows_old_copy():
            self._instance.steps.perform(machine.upstream_shows(link.number, batch.yours))
            if not link.is_open:
                return None
        self._instance.steps.perform(
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
        name: name of the instance.
        incarnation: the incarnation that the instance has now.
        generation: the number of the instance's moves.
        address: address at which the instance was reached; empty: the address does not matter.
        client_address: address at which clients reach the instance.
        names: digest of the publishers' names that the instance knows; empty: it does not say.
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
        name: name of the destination.
    """

    name: str

    @property
    def is_served(self) -> bool:
        """Returns whether the instance serves, so that links may begin."""

    def refuse(self, why: str) -> None:
        """Tells the link why it does not go on with the instance that it has reached."""

    def reached(self, server: ReachedServer) -> None:
        """Notes that the link counts as connected to this instance: from now on the link is told of
        commits."""

    def begins(self, start: LinkStart) -> None:
        """Tells the link how it begins. Everything else that the link is told from now on follows
        that."""


class LinkSetup:
    """The order in which one link begins; see the file's docstring.

    Owner: the instance's loop. Lifecycle: one connection of the link, until it has begun.

    Args:
        commits: takes the commits that are on the disk.
        server: the instance that the link has reached.
        plan: the messages that the reached instance holds and waits for.
    """

    def __init__(
        self,
        runtime: CommitRuntime,
        instance: CommittingInstance,
        commits: CommitCycle,
        link: BeginningLink,
        server: ReachedServer,
        plan: ResyncPlan,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._commits = commits
        self._link = link
        self._server = server
        self._plan = plan

    def goes_on(self) -> bool:
        """Returns whether the link may go on with the instance that it has reached. If not, the
        link is told why."""
        server, link = self._server, self._link
        refused = self._instance.machine.refuse_downstream(
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
        effects, more = self._instance.machine.compare(self._link.name, self._plan, *slice_of)
        self._instance.steps.perform(effects)
        return more

    def begin(self) -> LinkStart | None:
        """Begins the link, after the last slice was compared. Returns how the link begins; None: it
        does not begin, because the instance that it has reached turned out to have been moved."""
        if not self.goes_on():
            return None
        runtime, server, link = self._runtime, self._server, self._link
        link.reached(server)
        self._commits.catch_up()
        effects, start = self._instance.machine.link_connected(
            link.name,
            server.incarnation,
            self._plan,
            runtime.steady_us(),
            server.name,
            generation=server.generation,
            address=server.address,
        )
        link.begins(start)
        self._instance.steps.perform(effects)
        return start
