"""The places where messages arrive, their routes, and whether that depends on what comes first.

An instance journals the first copy of a message that comes and passes that one on. What it does
with it depends on three things, a *state*: who sent it last (the sender's group, or a client),
whether it was ever in another group (`own_group_only`), and by which instances it came (the loop
test). The first two decide by `Router.routed`, the code that runs; the third is kept as the
*chain* of a state, the set of instances on its way.

**Possible.** States that pass a message to the same links are one. They are found by a search over
(instance, links that it passes to, crossed, chain). A chain that holds all instances of another one
of the same state can do nothing that the other cannot, and is dropped, and so is what goes beyond
CHAINS_MAX chains of a state: the search is bounded by states, not by paths. Every chain that is
found is the way of some message: let every other link be slow.

**Certain.** An instance surely gets what some instance that surely has it passes to it in whatever
state that one has it. Where this does not decide, the other side is tried: a choice of first copies
by which the instance gets nothing; with such a choice it depends on what comes first, without one
it is certain.

**Scenarios.** An instance down, a site down, links of failover lists at another server of their
list: sets of scenarios are bits of one number, so that one pass for each publisher decides nearly
all of them (failure_analysis.py); what that pass leaves open is searched again for that scenario
alone, up to `failure_analysis.EXACT_MAX` times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import NamedTuple

from raylay.services.messages.records import Flag, Run
from raylay.services.messages.topics import TopicMatcher
from raylay.services.replication.link.routing import (
    DestinationRoute,
    Router,
)
from raylay.services.topology.members import TopicClass, TopologyMember

CHAINS_MAX = 4
ROTATIONS_MAX = 3
LOCAL = -1
"""Number in place of the sender's group, for a message that a client published at the instance
itself."""


class ReachState(NamedTuple):
    """The state in which an instance has a message.

    Attributes:
        at: the number of the instance.
        behaviour: the number of the set of its links that pass the message on.
        crossed: whether the message was ever in another group, where any link of the fabric asks
            for that.
    """

    at: int
    behaviour: int
    crossed: bool


class FailureScenario(NamedTuple):
    """A failure that the check assumes.

    Attributes:
        kind: `all up`, `instance`, `site` or `lists`.
        name: the instance or site that is down; for `lists` the place in the list, from 1.
        down: the numbers of the instances that are down, as bits.
        rotation: the position in their lists, from 0, of the servers to which links are connected;
            the first one from there that is up.
    """

    kind: str
    name: str
    down: int = 0
    rotation: int = 0


@dataclass(frozen=True, slots=True)
class LinkPath:
    """A destination of an instance. `servers`: the numbers of its servers that belong to this
    fabric, in the destination's order."""

    source: int
    place: int
    destination: DestinationRoute
    servers: tuple[int, ...]
    rule: int
    """Number of the destination's combination of topics, PassThrough and `own_group_only`. Links
    with the same number pass the same messages."""


@dataclass(slots=True)
class MessageFlow:
    """The spread of the messages published at one instance.

    Attributes:
        chains: each possible state, with the smallest sets of instances on the way to it.
        possible, certain: the instances that may have them and that surely have them, as bits.
    """

    chains: dict[ReachState, list[int]]
    possible: int = 0
    certain: int = 0
    by_instance: dict[int, list[ReachState]] = field(default_factory=dict)
    through: dict[ReachState, int] = field(default_factory=dict)
    """Instances on every way to a state, the instance of the state included, as bits."""


@dataclass(slots=True)
class LinkPlacement:
    """The servers to which links are connected: a server for each instance and link; -1: none."""

    servers: list[list[int]]
    targets: dict[ReachState, int] = field(default_factory=dict)
    """The instances to which a state is passed on, as bits."""


def bits(mask: int) -> Iterator[int]:
    """Yields the numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Routes:
    """The links of a fabric for one class of topics."""

    def __init__(self, members: Sequence[TopologyMember], topic: TopicClass) -> None:
        self.members = tuple(members)
        self.topic = topic
        self.number = {member.name: i for i, member in enumerate(members)}
        self.groups = list(dict.fromkeys(member.group for member in members))
        numbers = {group: i for i, group in enumerate(self.groups)}
        self.group_of = [numbers[member.group] for member in members]
        self.group_mask = [0] * len(self.groups)
        for i, group in enumerate(self.group_of):
            self.group_mask[group] |= 1 << i
        self._topic = topic.topic.encode(), topic.message_type.encode()
        self.journaling = 0
        matchers: dict[object, TopicMatcher] = {}
        for i, member in enumerate(members):
            matcher = matchers.setdefault(member.journaled, TopicMatcher(member.journaled))
            if matcher.matches(*self._topic):
                self.journaling |= 1 << i
        self._rules: dict[object, int] = {}
        self._routers: list[Router] = []
        self.links = [self._links_of(i, member) for i, member in enumerate(members)]
        self._waiting = [
            link for links in self.links for link in links if not link.destination.dials
        ]
        self._asks_crossed = any(
            destination.own_group_only for member in members for destination in member.destinations
        )
        self._routed: dict[tuple[int, int, bool], bool] = {}
        self._behaviours: dict[tuple[int, ...], int] = {}
        self._passing: dict[ReachState, tuple[LinkPath, ...]] = {}
        self._passing_rules: dict[ReachState, frozenset[int]] = {}
        self._arrived: dict[tuple[int, int, bool], ReachState] = {}
        self._anywhere: dict[ReachState, int] = {}
        self._placements: dict[int, list[list[int]]] = {}
        self.states_visited = 0
        self.searches = 0
        self.chains_dropped = 0

    def _links_of(self, i: int, member: TopologyMember) -> list[LinkPath]:
        found = []
        for place, destination in enumerate(member.destinations):
            rule = destination.topics, destination.pass_through, destination.own_group_only
            number = self._rules.setdefault(rule, len(self._rules))
            if number == len(self._routers):
                self._routers.append(Router(destination))
            servers = (self.number.get(address, i) for address in destination.addresses)
            reached = tuple(server for server in servers if server != i)
            found.append(LinkPath(i, place, destination, reached, number))
        return found

    # -- routing -----------------------------------------------------------------------------
    def _passes(self, rule: int, group: int, crossed: bool) -> bool:
        """Returns whether a link of this rule takes a copy that came from a group, apart from the
        loop test. Asks the production router."""
        key = rule, group, crossed
        found = self._routed.get(key)
        if found is None:
            topic, message_type = self._topic
            local = group == LOCAL
            run = Run(0, 0, 0, 0, b"", topic, message_type)
            run.path = () if local else (1,)
            run.group = "" if local else self.groups[group]
            run.flags = Flag.CROSSED if crossed else 0
            found = self._routed[key] = self._routers[rule].routed(run, 0)
        return found

    def passes_topic(self, destination: DestinationRoute) -> bool:
        """Returns whether a destination takes the messages that clients publish on the topic at its
        instance."""
        topic, message_type = self._topic
        return Router(destination).routed(Run(0, 0, 0, 0, b"", topic, message_type), 0)

    def state(self, at: int, group: int, crossed: bool) -> ReachState:
        """Returns the state of a copy at an instance.

        Args:
            group: the number of the sender's group, or LOCAL.
            crossed: whether the copy was ever in another group.
        """
        crossed = crossed and self._asks_crossed
        key = at, group, crossed
        found = self._arrived.get(key)
        if found is None:
            passing = tuple(
                link for link in self.links[at] if self._passes(link.rule, group, crossed)
            )
            places = tuple(link.place for link in passing)
            behaviour = self._behaviours.setdefault(places, len(self._behaviours))
            found = self._arrived[key] = ReachState(at, behaviour, crossed)
            self._passing[found] = passing
        return found

    def passing_rules(self, state: ReachState) -> frozenset[int]:
        """Returns the rules of the links that pass a copy in this state on."""
        found = self._passing_rules.get(state)
        if found is None:
            found = frozenset(link.rule for link in self._passing[state])
            self._passing_rules[state] = found
        return found

    def passing(self, state: ReachState) -> tuple[LinkPath, ...]:
        """Returns the links that pass a copy in this state on, apart from the loop test."""
        return self._passing[state]

    def placement(self, scenario: FailureScenario) -> LinkPlacement:
        """Returns the servers to which links are connected.

        There is one link from a given instance to a given instance: destinations with a single
        server come before those with a list, and these follow in the order of their declaration. A
        destination that does not dial is connected where a server's own link has arrived.
        """
        usual = self._placements.get(scenario.rotation)
        if usual is None:
            usual = self._placements[scenario.rotation] = [
                self._placed(links, 0, scenario.rotation) for links in self.links
            ]
        if not scenario.down:
            return LinkPlacement(self._with_waiting(usual))
        dialled = [
            self._placed(self.links[i], scenario.down, scenario.rotation)
            if any(server >= 0 and scenario.down >> server & 1 for server in servers)
            else servers
            for i, servers in enumerate(usual)
        ]
        return LinkPlacement(self._with_waiting(dialled))

    def _with_waiting(self, dialled: list[list[int]]) -> list[list[int]]:
        """Returns a placement with the links that do not dial."""
        if not self._waiting:
            return dialled
        placed = [list(servers) for servers in dialled]
        for link in self._waiting:
            taken = placed[link.source]
            for server in link.servers:
                if server not in taken and link.source in dialled[server]:
                    taken[link.place] = server
                    break
        return placed

    def _placed(self, links: list[LinkPath], down: int, rotation: int) -> list[int]:
        taken = 0
        chosen = [-1] * len(links)
        for link in sorted(links, key=lambda link: (len(link.servers) > 1, link.place)):
            if not link.destination.dials:
                continue
            first = rotation % len(link.servers) if link.servers else 0
            for server in link.servers[first:] + link.servers[:first]:
                if not (down | taken) >> server & 1:
                    taken |= 1 << server
                    chosen[link.place] = server
                    break
        return chosen

    def arrived(self, state: ReachState, at: int) -> ReachState:
        """Returns the state of a message at an instance that got it from another one in this
        state."""
        group = self.group_of[state.at]
        return self.state(at, group, state.crossed or group != self.group_of[at])

    # -- what is possible --------------------------------------------------------------------
    def flow(
        self,
        starts: Iterable[tuple[ReachState, int]],
        placed: LinkPlacement | None,
        down: int = 0,
    ) -> MessageFlow:
        """Returns everything that can happen from these states on.

        Args:
            starts: states and their chains, which hold the instance itself.
            placed: the servers of links; None: each may be at any server of its list.
            down: the instances that are down, as bits.
        """
        self.searches += 1
        flow = MessageFlow({})
        queue: deque[tuple[ReachState, int]] = deque()
        # Where a copy came directly, with nothing on its way but the start, nothing is smaller.
        least: dict[tuple[int, bool], int] = {}
        closed = down | ~self.journaling
        for state, chain in starts:
            closed |= 1 << state.at
            flow.chains.setdefault(state, []).append(chain)
            queue.append((state, chain))
        while queue:
            state, chain = queue.popleft()
            if chain not in flow.chains[state]:
                continue  # A smaller one was found since.
            self.states_visited += 1
            targets = self.targets(state, placed) & ~(closed | chain)
            group = self.group_of[state.at]
            direct = chain.bit_count() == 1
            for crossed, part in (
                (state.crossed, targets & self.group_mask[group]),
                (True, targets & ~self.group_mask[group]),
            ):
                done = least.get((group, crossed), 0)
                for at in bits(part & ~done):
                    made = chain | 1 << at
                    arrived = self.state(at, group, crossed)
                    if self._keep(flow.chains, arrived, made):
                        queue.append((arrived, made))
                if direct:
                    least[group, crossed] = done | part
        for state, chains in flow.chains.items():
            flow.by_instance.setdefault(state.at, []).append(state)
            flow.possible |= 1 << state.at
            flow.through[state] = reduce(and_, chains)
        return flow

    def targets(self, state: ReachState, placed: LinkPlacement | None) -> int:
        """Returns the instances, as bits, to which a copy is passed on from there, apart from the
        loop test."""
        known = self._anywhere if placed is None else placed.targets
        found = known.get(state)
        if found is None:
            found = 0
            for link in self._passing[state]:
                if placed is None:
                    for server in link.servers:
                        found |= 1 << server
                elif (server := placed.servers[state.at][link.place]) >= 0:
                    found |= 1 << server
            known[state] = found
        return found

    def _keep(self, chains: dict[ReachState, list[int]], state: ReachState, chain: int) -> bool:
        known = chains.get(state)
        if known is None:
            chains[state] = [chain]
            return True
        for other in known:
            if other & ~chain == 0:
                return False
        known[:] = [other for other in known if chain & ~other]
        if len(known) >= CHAINS_MAX:
            self.chains_dropped += 1
            return False
        known.append(chain)
        return True

    def published(self, at: int) -> tuple[ReachState, int]:
        """Returns the state and the chain of a message that a client publishes at an instance."""
        return self.state(at, LOCAL, False), 1 << at

    # -- what is certain ---------------------------------------------------------------------
    def decide(self, flow: MessageFlow, placed: LinkPlacement, start: int) -> MessageFlow:
        """Fills in what is certain.

        Args:
            flow: the result of `flow`, with links at the same servers.
            start: the instances that have the message to begin with, as bits.
        """
        certain = start
        queue = deque(bits(start))
        while queue:
            at = queue.popleft()
            offered = flow.possible & ~certain
            for state in flow.by_instance[at]:
                offered &= self.targets(state, placed) | flow.through[state]
            for target in bits(offered):
                certain |= 1 << target
                queue.append(target)
        for target in bits(flow.possible & ~certain):
            if not self._avoidable(flow, placed, start, target):
                certain |= 1 << target
        flow.certain = certain
        return flow

    def _avoidable(self, flow: MessageFlow, placed: LinkPlacement, start: int, target: int) -> bool:
        """Returns whether first copies can be chosen so that the target gets nothing."""
        avoided = 1 << target
        roots = [state for at in bits(start) for state in flow.by_instance[at]]
        while True:
            if any(self.targets(state, placed) & avoided for state in roots):
                return False
            reached = start
            emitted = 0
            met = set(roots)
            stack = list(roots)
            while stack:
                state = stack.pop()
                mask = self.targets(state, placed) & flow.possible
                emitted |= mask
                for at in bits(mask & ~start):
                    arrived = self.arrived(state, at)
                    if arrived in met or arrived not in flow.chains:
                        continue
                    if not self.targets(arrived, placed) & avoided:
                        met.add(arrived)
                        reached |= 1 << at
                        stack.append(arrived)
            forced = emitted & ~reached & ~avoided
            if not forced:
                return True
            avoided |= forced

    # -- scenarios ---------------------------------------------------------------------------
    def scenarios(self) -> list[FailureScenario]:
        """Returns the scenarios: all up; each instance down; each site of several instances down;
        links at later servers of their lists."""
        found = [FailureScenario("all up", "")]
        found += [
            FailureScenario("instance", member.name, 1 << i)
            for i, member in enumerate(self.members)
        ]
        found += [
            FailureScenario("site", group, self.group_mask[i])
            for i, group in enumerate(self.groups)
            if self.group_mask[i].bit_count() > 1
        ]
        longest = max((len(link.servers) for links in self.links for link in links), default=1)
        found += [
            FailureScenario("lists", str(rotation + 1), 0, rotation)
            for rotation in range(1, min(longest, ROTATIONS_MAX + 1))
        ]
        return found
