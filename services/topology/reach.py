"""Where messages arrive, by which routes, and whether that depends on what comes first.

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
all of them; what that pass leaves open is searched again for that scenario alone, up to EXACT_MAX
times.
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
from raylay.services.replication.routing import (
    Destination,
    Router,
)
from raylay.services.topology.members import Member, TopicClass

CHAINS_MAX = 4
EXACT_MAX = 5_000
ROTATIONS_MAX = 3
LOCAL = -1
"""In place of a group: published here."""


class State(NamedTuple):
    """How an instance has a message.

    Attributes:
        at: number of the instance.
        behaviour: number of the set of its links that pass it on.
        crossed: whether it was ever in another group, where any link of the fabric asks for that.
    """

    at: int
    behaviour: int
    crossed: bool


class Scenario(NamedTuple):
    """What is not as it should be.

    Attributes:
        kind: `all up`, `instance`, `site` or `lists`.
        name: of the instance or site that is down; for `lists` the place in the list, from 1.
        down: numbers of the instances, as bits.
        rotation: at which server of their lists links are, from 0; the first that is up from there.
    """

    kind: str
    name: str
    down: int = 0
    rotation: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A destination of an instance; `servers`: numbers of those of this fabric, in its order."""

    source: int
    place: int
    destination: Destination
    servers: tuple[int, ...]
    rule: int
    """Number of its topics, PassThrough and `own_group_only`: links with the same pass the same."""


@dataclass(slots=True)
class Flow:
    """What becomes of the messages published at one instance.

    Attributes:
        chains: each state that is possible, with the smallest sets of instances on its way.
        possible, certain: instances that may have them, that surely have them; as bits.
    """

    chains: dict[State, list[int]]
    possible: int = 0
    certain: int = 0
    by_instance: dict[int, list[State]] = field(default_factory=dict)
    through: dict[State, int] = field(default_factory=dict)
    """The instances on every way to a state, itself included, as bits: nothing that they lack."""


@dataclass(slots=True)
class Placement:
    """Where links are connected: for each instance and link a server, -1 for none."""

    servers: list[list[int]]
    targets: dict[State, int] = field(default_factory=dict)
    """To which instances, as bits, a state is passed on."""


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Routes:
    """A fabric as one class of topics sees it."""

    def __init__(self, members: Sequence[Member], topic: TopicClass) -> None:
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
        self._passing: dict[State, tuple[Link, ...]] = {}
        self._passing_rules: dict[State, frozenset[int]] = {}
        self._arrived: dict[tuple[int, int, bool], State] = {}
        self._anywhere: dict[State, int] = {}
        self._placements: dict[int, list[list[int]]] = {}
        self.states_visited = 0
        self.searches = 0
        self.chains_dropped = 0

    def _links_of(self, i: int, member: Member) -> list[Link]:
        found = []
        for place, destination in enumerate(member.destinations):
            rule = destination.topics, destination.pass_through, destination.own_group_only
            number = self._rules.setdefault(rule, len(self._rules))
            if number == len(self._routers):
                self._routers.append(Router(destination))
            servers = (self.number.get(address, i) for address in destination.addresses)
            reached = tuple(server for server in servers if server != i)
            found.append(Link(i, place, destination, reached, number))
        return found

    # -- routing -----------------------------------------------------------------------------
    def _passes(self, rule: int, group: int, crossed: bool) -> bool:
        """Whether a link of this rule takes a copy that came from a group, the loop test aside:
        asks the router that runs."""
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

    def passes_topic(self, destination: Destination) -> bool:
        """Whether a destination takes what clients publish on the topic at its instance."""
        topic, message_type = self._topic
        return Router(destination).routed(Run(0, 0, 0, 0, b"", topic, message_type), 0)

    def state(self, at: int, group: int, crossed: bool) -> State:
        """The state of a copy at an instance.

        Args:
            group: number of the sender's group, or LOCAL.
            crossed: whether it was ever in another group.
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
            found = self._arrived[key] = State(at, behaviour, crossed)
            self._passing[found] = passing
        return found

    def passing_rules(self, state: State) -> frozenset[int]:
        """The rules of the links that pass a copy in this state on."""
        found = self._passing_rules.get(state)
        if found is None:
            found = frozenset(link.rule for link in self._passing[state])
            self._passing_rules[state] = found
        return found

    def passing(self, state: State) -> tuple[Link, ...]:
        """The links that pass a copy in this state on, the loop test aside."""
        return self._passing[state]

    def placement(self, scenario: Scenario) -> Placement:
        """The servers that links are connected to.

        There is one link from a given instance to a given instance: one with a single server has
        it before lists, and these one after the other in the order declared. One that does not dial
        is where a server's own link has come.
        """
        usual = self._placements.get(scenario.rotation)
        if usual is None:
            usual = self._placements[scenario.rotation] = [
                self._placed(links, 0, scenario.rotation) for links in self.links
            ]
        if not scenario.down:
            return Placement(self._with_waiting(usual))
        dialled = [
            self._placed(self.links[i], scenario.down, scenario.rotation)
            if any(server >= 0 and scenario.down >> server & 1 for server in servers)
            else servers
            for i, servers in enumerate(usual)
        ]
        return Placement(self._with_waiting(dialled))

    def _with_waiting(self, dialled: list[list[int]]) -> list[list[int]]:
        """A placement with the links that do not dial."""
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

    def _placed(self, links: list[Link], down: int, rotation: int) -> list[int]:
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

    def arrived(self, state: State, at: int) -> State:
        """The state in which an instance has what came from another one in this state."""
        group = self.group_of[state.at]
        return self.state(at, group, state.crossed or group != self.group_of[at])

    # -- what is possible --------------------------------------------------------------------
    def flow(
        self,
        starts: Iterable[tuple[State, int]],
        placed: Placement | None,
        down: int = 0,
    ) -> Flow:
        """Everything that can happen from these states on.

        Args:
            starts: states and their chains, which hold the instance itself.
            placed: where links are; None: each may be at any server of its list.
            down: instances that are not there, as bits.
        """
        self.searches += 1
        flow = Flow({})
        queue: deque[tuple[State, int]] = deque()
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

    def targets(self, state: State, placed: Placement | None) -> int:
        """To which instances a copy is passed on from there, the loop test aside; as bits."""
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

    def _keep(self, chains: dict[State, list[int]], state: State, chain: int) -> bool:
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

    def published(self, at: int) -> tuple[State, int]:
        """The state of what a client publishes at an instance, and its chain."""
        return self.state(at, LOCAL, False), 1 << at

    # -- what is certain ---------------------------------------------------------------------
    def decide(self, flow: Flow, placed: Placement, start: int) -> Flow:
        """Fills in what is certain.

        Args:
            flow: from `flow`, with links at the same servers.
            start: the instances that have it to begin with, as bits.
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

    def _avoidable(self, flow: Flow, placed: Placement, start: int, target: int) -> bool:
        """Whether first copies can be chosen so that the target gets nothing."""
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
    def scenarios(self) -> list[Scenario]:
        """All up; each instance down; each site of several instances down; lists elsewhere."""
        found = [Scenario("all up", "")]
        found += [
            Scenario("instance", member.name, 1 << i) for i, member in enumerate(self.members)
        ]
        found += [
            Scenario("site", group, self.group_mask[i])
            for i, group in enumerate(self.groups)
            if self.group_mask[i].bit_count() > 1
        ]
        longest = max((len(link.servers) for links in self.links for link in links), default=1)
        found += [
            Scenario("lists", str(rotation + 1), 0, rotation)
            for rotation in range(1, min(longest, ROTATIONS_MAX + 1))
        ]
        return found


class Survey:
    """All publishers of a fabric in all scenarios, for one class of topics."""

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.scenarios = routes.scenarios()
        self.publishers = [
            i
            for i, member in enumerate(routes.members)
            if member.publishes and routes.journaling >> i & 1
        ]
        self._placements: dict[int, Placement] = {}
        every = (1 << len(self.scenarios)) - 1
        self._up = [every] * len(routes.members)
        self._rotated: dict[int, int] = {}
        for s, scenario in enumerate(self.scenarios):
            for i in bits(scenario.down):
                self._up[i] &= ~(1 << s)
            self._rotated[scenario.rotation] = self._rotated.get(scenario.rotation, 0) | 1 << s
        self._active: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.any_server = {i: routes.flow([routes.published(i)], None) for i in self.publishers}
        self.nominal = {i: self.exact(i, 0) for i in self.publishers}
        self.undecided = 0
        """Of scenarios that were left to the quick pass, which may see too little."""
        self._exact_left = EXACT_MAX
        self._passed_on: dict[int, int] = {}
        self._down_alone = {
            next(bits(scenario.down)): s
            for s, scenario in enumerate(self.scenarios)
            if scenario.kind == "instance"
        }

    def exact(self, publisher: int, scenario: int) -> Flow:
        """What becomes of an instance's publishes in a scenario."""
        routes = self.routes
        placed = self.placement(scenario)
        down = self.scenarios[scenario].down
        flow = routes.flow([routes.published(publisher)], placed, down)
        return routes.decide(flow, placed, 1 << publisher)

    def placement(self, scenario: int) -> Placement:
        """Where links are in a scenario."""
        found = self._placements.get(scenario)
        if found is None:
            found = self._placements[scenario] = self.routes.placement(self.scenarios[scenario])
        return found

    def active(self, link: Link) -> list[tuple[int, int]]:
        """(server, the scenarios in which the link is at it, as bits)."""
        key = link.source, link.place
        found = self._active.get(key)
        if found is not None:
            return found
        others = {
            server
            for other in self.routes.links[link.source]
            if other.place != link.place
            for server in other.servers
        }
        at: dict[int, int] = {}
        if link.destination.dials and others.isdisjoint(link.servers):
            for rotation, scenarios in self._rotated.items():
                first = rotation % len(link.servers) if link.servers else 0
                left = scenarios
                for server in link.servers[first:] + link.servers[:first]:
                    at[server] = at.get(server, 0) | left & self._up[server]
                    left &= ~self._up[server]
        else:
            for s in range(len(self.scenarios)):
                server = self.placement(s).servers[link.source][link.place]
                if server >= 0:
                    at[server] = at.get(server, 0) | 1 << s
        found = self._active[key] = list(at.items())
        return found

    def alive(self, publisher: int) -> list[int]:
        """For each instance the scenarios in which it surely gets what is published there, by one
        pass that leaves out what it cannot tell at once."""
        found = [0] * len(self.routes.members)
        found[publisher] = self._up[publisher]
        offers: dict[int, list[tuple[int, int]]] = {}
        wanted = self.nominal[publisher].certain & ~(1 << publisher)
        full = {target: self._up[target] & self._up[publisher] for target in bits(wanted)}
        self._spread(publisher, found, offers, full)
        # The same offers tell what its sync destinations pass on when it is down.
        passed_on = [0] * len(found)
        alone = 1 << self._down_alone[publisher]
        for state, _ in self._acknowledged(publisher):
            passed_on[state.at] = alone
        self._spread(publisher, passed_on, offers, dict.fromkeys(full, alone))
        self._passed_on[publisher] = sum(1 << i for i, mask in enumerate(passed_on) if mask)
        return found

    def _spread(
        self,
        publisher: int,
        found: list[int],
        offers: dict[int, list[tuple[int, int]]],
        full: dict[int, int],
    ) -> None:
        """Passes scenarios on until nothing more comes, or all that can come has."""
        left = {target for target, mask in full.items() if mask & ~found[target]}
        flow = self.any_server[publisher]
        queue = deque(i for i, mask in enumerate(found) if mask)
        queued = sum(1 << i for i in queue)
        while queue and left:
            at = queue.popleft()
            queued &= ~(1 << at)
            if at not in offers:
                offers[at] = self._offers(flow, at)
            here = found[at]
            for target, mask in offers[at]:
                more = here & mask & self._up[target] & ~found[target]
                if more:
                    found[target] |= more
                    if not full.get(target, 0) & ~found[target]:
                        left.discard(target)
                    if not queued >> target & 1:
                        queued |= 1 << target
                        queue.append(target)

    def _offers(self, flow: Flow, at: int) -> list[tuple[int, int]]:
        """(target, scenarios) of what the instance passes on in whatever state it has it."""
        routes = self.routes
        states = flow.by_instance.get(at, [])
        # A target is left out where some state, not come through it, does not pass to it.
        refused: dict[int, int] = {}
        links: dict[int, Link] = {}
        for state in states:
            links.update((link.place, link) for link in routes.passing(state))
        for state in states:
            passing = {link.place for link in routes.passing(state)}
            for place in links.keys() - passing:
                refused[place] = refused.get(place, 0) | ~flow.through[state]
        return [
            (target, mask)
            for place, link in links.items()
            for target, mask in self.active(link)
            if routes.journaling >> target & 1 and not refused.get(place, 0) >> target & 1
        ]

    def missing(self) -> dict[int, dict[int, int]]:
        """Scenario to publisher to the instances that do not surely get what is published there
        and would with all instances up. What is down itself does not count."""
        found: dict[int, dict[int, int]] = {}
        for publisher in self.publishers:
            alive = self.alive(publisher)
            wanted = self.nominal[publisher].certain
            open_scenarios = 0
            for target in bits(wanted):
                open_scenarios |= self._up[target] & ~alive[target]
            for s in bits(open_scenarios & self._up[publisher] & ~1):
                lost = wanted & ~self.scenarios[s].down
                if self._exact_left:
                    self._exact_left -= 1
                    lost &= ~self.exact(publisher, s).certain
                else:
                    self.undecided += 1
                    lost &= ~sum(1 << i for i, mask in enumerate(alive) if mask >> s & 1)
                if lost:
                    found.setdefault(s, {})[publisher] = lost
        return found

    def wanted(self, publisher: int) -> int:
        """The instances that are meant to get what is published at one, as bits: all that journal
        the topic, but those from which only links lead here that exclude `replicate`."""
        routes = self.routes
        found = routes.journaling & ~(1 << publisher)
        if not any(member.one_way for member in routes.members):
            return found
        above = self._above(publisher, one_way=True) & ~self._above(publisher, one_way=False)
        return found & ~above

    def _above(self, at: int, *, one_way: bool) -> int:
        """The instances from which links lead to one, with or without those that are one-way."""
        routes = self.routes
        found = 1 << at
        grown = True
        while grown:
            grown = False
            for links in routes.links:
                for link in links:
                    if found >> link.source & 1:
                        break
                    one = link.destination.name in routes.members[link.source].one_way
                    if (one_way or not one) and any(found >> s & 1 for s in link.servers):
                        found |= 1 << link.source
                        grown = True
        return found

    # -- acknowledgments ---------------------------------------------------------------------
    def durable(self, publisher: int) -> int:
        """The instances that surely have what an instance acknowledged to its publisher, as bits:
        the closure of sync links (design.md, law 1), whichever servers of their lists they are at,
        until all of its own group are in it."""
        routes = self.routes
        flow = self.any_server[publisher]
        mates = routes.group_mask[routes.group_of[publisher]] & routes.journaling
        found = 1 << publisher
        grown = True
        while grown and mates & ~found:
            grown = False
            for at in bits(found):
                states = flow.by_instance.get(at, [])
                for link in routes.links[at]:
                    if not link.destination.sync or not link.servers:
                        continue
                    missing = [s for s in link.servers if not found >> s & 1]
                    if len(missing) == 1 and all(
                        link in routes.passing(state) or flow.through[state] >> missing[0] & 1
                        for state in states
                    ):
                        found |= 1 << missing[0]
                        grown = True
        return found

    def stranded(self, publisher: int) -> int:
        """The instances that do not surely get what an instance acknowledged before it went down,
        as long as it is down, though its sync destinations have it."""
        if publisher not in self._passed_on:
            self.alive(publisher)
        wanted = self.nominal[publisher].certain & ~(1 << publisher)
        starts = self._acknowledged(publisher)
        if not starts or not wanted & ~self._passed_on[publisher]:
            return 0
        routes = self.routes
        placed = self.placement(self._down_alone[publisher])
        flow = routes.flow(starts, placed, 1 << publisher)
        routes.decide(flow, placed, sum(1 << state.at for state, _ in starts))
        return wanted & ~flow.certain

    def _acknowledged(self, publisher: int) -> list[tuple[State, int]]:
        """The states and chains in which sync destinations have what is published there."""
        routes = self.routes
        state, chain = routes.published(publisher)
        servers = self.placement(0).servers[publisher]
        return [
            (routes.arrived(state, servers[link.place]), chain | 1 << servers[link.place])
            for link in routes.passing(state)
            if link.destination.sync
            and servers[link.place] >= 0
            and routes.journaling >> servers[link.place] & 1
        ]

    # -- routes ------------------------------------------------------------------------------
    def all_senders(self, publisher: int) -> dict[int, list[tuple[int, bool]]]:
        """For each instance (sender, whether always) of those that send it an instance's publishes:
        the first that comes is journaled, of the others it is found that they are there."""
        routes = self.routes
        flow = self.nominal[publisher]
        placed = self.placement(0)
        found: dict[int, list[tuple[int, bool]]] = {}
        for at, states in flow.by_instance.items():
            passed = refused = 0
            for state in states:
                targets = routes.targets(state, placed) & routes.journaling
                passed |= targets & ~flow.through[state]
                refused |= ~targets & ~flow.through[state]
            for target in bits(passed):
                always = bool(flow.certain >> at & 1) and not refused >> target & 1
                found.setdefault(target, []).append((at, always))
        return found

    def _ways(self, publisher: int) -> dict[State, State | None]:
        """The states of a publish on shortest ways, nearest first, each with the one before."""
        routes = self.routes
        start = routes.published(publisher)[0]
        before: dict[State, State | None] = {start: None}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            targets = routes.targets(state, self.placement(0)) & routes.journaling
            for at in bits(targets & ~(1 << publisher)):
                arrived = routes.arrived(state, at)
                if arrived not in before:
                    before[arrived] = state
                    queue.append(arrived)
        return before

    def route(self, publisher: int, target: int) -> list[int]:
        """A shortest way from an instance to another one; empty where there is none."""
        before = self._ways(publisher)
        step = next((state for state in before if state.at == target), None)
        way = []
        while step is not None:
            way.append(step.at)
            step = before[step]
        return way[::-1]

    def hops(self, publisher: int) -> dict[int, int]:
        """For each instance that an instance's publishes may arrive at the links on a shortest
        way."""
        before = self._ways(publisher)
        depth: dict[State, int] = {}
        found: dict[int, int] = {}
        for state, previous in before.items():
            depth[state] = 0 if previous is None else depth[previous] + 1
            found.setdefault(state.at, depth[state])
        return found

    def partly(self, group: int) -> dict[int, list[Link]]:
        """Instance to the links that bring it a part of what a site publishes, where another link
        brings it more: there a message may come behind a later one of its publisher (law 3).

        A publisher may go on at any instance of the site, so the site is looked at as a whole.
        Where it goes on the new instance has everything, or it is sent again.
        """
        routes = self.routes
        inside = [i for i in self.publishers if routes.group_of[i] == group]
        # Instance and rule of its links to what they pass to, and to what they may not though that
        # lacks it; as bits.
        passed: dict[tuple[int, int], int] = {}
        kept: dict[tuple[int, int], int] = {}
        rules_of = [{link.rule for link in links} for links in routes.links]
        for publisher in inside:
            flow = self.any_server[publisher]
            other = ~(1 << publisher)
            for at in range(len(routes.links)):
                states = flow.by_instance.get(at, ())
                passing = [routes.passing_rules(state) for state in states]
                for rule in rules_of[at]:
                    key = at, rule
                    if not states:
                        kept[key] = kept.get(key, 0) | other
                    for state, rules in zip(states, passing, strict=True):
                        into = passed if rule in rules else kept
                        into[key] = into.get(key, 0) | other & ~flow.through[state]
        found: dict[int, list[tuple[Link, bool]]] = {}
        for links in routes.links:
            for link in links:
                key = link.source, link.rule
                for target in link.servers:
                    if (routes.journaling & passed.get(key, 0)) >> target & 1:
                        part = bool(kept.get(key, 0) >> target & 1)
                        found.setdefault(target, []).append((link, part))
        return {
            target: [link for link, part in links if part]
            for target, links in found.items()
            if len(links) > 1 and any(part for _, part in links)
        }
