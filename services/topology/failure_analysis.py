"""The routes of every publisher (reach.py), for each instance that may be down."""

from __future__ import annotations

from collections import deque

from raylay.services.topology.reach import (
    LinkPath,
    LinkPlacement,
    MessageFlow,
    ReachState,
    Routes,
    bits,
)

EXACT_MAX = 5_000


class FailureAnalysis:
    """The routes of all publishers of a fabric in all failure scenarios, for one class of
    topics."""

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.scenarios = routes.scenarios()
        self.publishers = [
            i
            for i, member in enumerate(routes.members)
            if member.publishes and routes.journaling >> i & 1
        ]
        self._placements: dict[int, LinkPlacement] = {}
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
        """Number of scenarios that only the quick pass has seen, which may report too few
        routes."""
        self._exact_left = EXACT_MAX
        self._passed_on: dict[int, int] = {}
        self._down_alone = {
            next(bits(scenario.down)): s
            for s, scenario in enumerate(self.scenarios)
            if scenario.kind == "instance"
        }

    def exact(self, publisher: int, scenario: int) -> MessageFlow:
        """Returns the flow of an instance's publishes in a scenario."""
        routes = self.routes
        placed = self.placement(scenario)
        down = self.scenarios[scenario].down
        flow = routes.flow([routes.published(publisher)], placed, down)
        return routes.decide(flow, placed, 1 << publisher)

    def placement(self, scenario: int) -> LinkPlacement:
        found = self._placements.get(scenario)
        if found is None:
            found = self._placements[scenario] = self.routes.placement(self.scenarios[scenario])
        return found

    def active(self, link: LinkPath) -> list[tuple[int, int]]:
        """Returns the links of an instance as (server, scenarios in which the link is connected to
        the server, as bits)."""
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
        """Returns, for each instance, the scenarios in which it surely gets the messages published
        there. This is the quick pass, which leaves out what it cannot decide at once."""
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
        """Passes scenarios on until nothing more arrives, or everything that can has arrived."""
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

    def _offers(self, flow: MessageFlow, at: int) -> list[tuple[int, int]]:
        """Returns (target, scenarios) of the messages that the instance passes on, whatever state
        they have there."""
        routes = self.routes
        states = flow.by_instance.get(at, [])
        # A target is left out where some state, not come through it, does not pass to it.
        refused: dict[int, int] = {}
        links: dict[int, LinkPath] = {}
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
        """Returns, by scenario and publisher, the instances that do not surely get its messages and
        would with all instances up. Instances that are down do not count."""
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
        """Returns the instances that should get the messages published at one, as bits: all that
        journal the topic, except those from which only links lead here that exclude `replicate`."""
        routes = self.routes
        found = routes.journaling & ~(1 << publisher)
        if not any(member.one_way for member in routes.members):
            return found
        above = self._above(publisher, one_way=True) & ~self._above(publisher, one_way=False)
        return found & ~above

    def _above(self, at: int, *, one_way: bool) -> int:
        """Returns the instances from which links lead to one, with or without one-way links."""
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
        """Returns the instances that surely have what an instance acknowledged to its publisher, as
        bits: the closure of sync links (design.md, law 1), whichever servers of their lists they
        are connected to, until all instances of its own group are in it."""
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
        """Returns the instances that do not surely get what an instance acknowledged before it went
        down, until it is back, although its sync destinations have it."""
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

    def _acknowledged(self, publisher: int) -> list[tuple[ReachState, int]]:
        """Returns the states and chains in which sync destinations have the messages published
        there."""
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
        """Returns, for each instance, (sender, whether always) of the instances that send it a
        publisher's messages. It journals the first copy, and finds that it has the others."""
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

    def _ways(self, publisher: int) -> dict[ReachState, ReachState | None]:
        """Returns the states of a publish on shortest paths, nearest first, each with the one
        before."""
        routes = self.routes
        start = routes.published(publisher)[0]
        before: dict[ReachState, ReachState | None] = {start: None}
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
        """Returns a shortest route from an instance to another one; empty where there is none."""
        before = self._ways(publisher)
        step = next((state for state in before if state.at == target), None)
        way = []
        while step is not None:
            way.append(step.at)
            step = before[step]
        return way[::-1]

    def hops(self, publisher: int) -> dict[int, int]:
        """Returns, for each instance at which an instance's publishes may arrive, the number of
        links on a shortest route."""
        before = self._ways(publisher)
        depth: dict[ReachState, int] = {}
        found: dict[int, int] = {}
        for state, previous in before.items():
            depth[state] = 0 if previous is None else depth[previous] + 1
            found.setdefault(state.at, depth[state])
        return found

    def partly(self, group: int) -> dict[int, list[LinkPath]]:
        """Returns, by instance, the links that bring it only a part of a site's publishes where
        another link brings more: a message may then arrive after a later one of its publisher (law
        3).

        A publisher may continue at any instance of its site, so the site is considered as a whole.
        The instance at which it continues has everything, or the messages are sent again.
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
        found: dict[int, list[tuple[LinkPath, bool]]] = {}
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
