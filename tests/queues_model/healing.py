"""The end of a schedule: everything heals, and then all instances must agree, and all messages that
were acknowledged to their publishers must have been consumed (laws 1 and 6)."""

from __future__ import annotations

from .world import ALL, Violation, World

QUIET_ROUNDS_MAX, CONSUMED_ROUNDS_MAX = 200, 150


def pump(world: World, names: list[str], consume: bool) -> bool:
    """Everything that can happen by itself does. Whether anything did."""
    did = False
    pairs = [(a, b) for a, b in world.links if a in names and b in names]
    for a, b in pairs:
        did |= world.do("conn", a, b)
    for a, b in pairs:
        while world.do("send", a, b) or world.do("recv", a, b):
            did = True
    for name in names:
        instance = world.instances[name]
        did |= world.do("commit", name)
        if not instance.serving:
            world.caught_up(instance)
            did |= instance.serving
        while world.do("fold", name) or world.do("in", name):
            did = True
        did |= world.do("timer", name)
        if consume:
            while world.do("deliver", name):
                did = True
            did |= world.do("request", name)
        while world.do("out", name):
            did = True
    for number, publisher in world.publishers.items():
        if publisher.pending:
            up = [name for name in names if world.instances[name].serving]
            if up and publisher.at is None:
                did |= world.do("pfail", number, up[0])
            did |= world.do("pack", number)
    return did


def heal(world: World, final: str, dead: str = "", proxy: str = "") -> None:
    """Heals the world and judges it.

    Args:
        final: where the last consumer is.
        dead: an instance that never returns; `proxy`: where messages may be claimed then.

    Raises:
        Violation: a law is broken.
    """
    names = list(world.names)
    for name in names:
        world.do("proxy", name, False)
    if dead:
        world.do("crash", dead)
        world.excused |= world.only_there(dead)
        world.exempt |= world.all_messages()
        names.remove(dead)
        world.do("proxy", proxy, True)
        if not any(world.instances[name].serving for name in names):
            for name in names:
                world.instances[name].serve()  # the operator says so
    for cut in list(world.cuts):
        world.do("heal", *sorted(cut))
    for name in names:
        world.do("restart", name)
    for who, client in list(world.clients.items()):
        if client.pending and not client.at:
            any(world.instances[name].serving and world.do("cjoin", who, name) for name in names)
    for _ in range(3):
        pump(world, names, consume=False)
    for who in list(world.clients):
        world.do("cdie", who)
    idle = 0
    for _ in range(QUIET_ROUNDS_MAX):
        idle = 0 if pump(world, names, consume=False) else idle + 1
        if idle >= 2:
            break
    else:
        raise Violation("Q never quiet without consumers")
    agree(world, names, dead)
    consume(world, names, final)
    for number, publisher in world.publishers.items():
        for key in publisher.acked:
            if key not in world.excused | world.done | world.expired:
                raise Violation(f"L1 {key} of {number} was acknowledged and is lost")


def agree(world: World, names: list[str], dead: str) -> None:
    """All instances hold the same messages and the same registers, and each has one owner."""
    for name in names:
        if not world.instances[name].serving:
            raise Violation(f"Q {name} never serves")
    machines = {name: world.instances[name].machine for name in names}
    views = {name: machine.state.registers() for name, machine in machines.items()}
    one = {key: register for view in views.values() for key, register in view.items()}
    holders = {
        key: [name for name in names if not world.narrow or key in world.instances[name].disk.held]
        for key in one
    }
    for key, register in one.items():
        found = {name: views[name].get(key) for name in holders[key]}
        # An acknowledgment that was lost with its author's disk may have come to some only.
        is_lost = world.narrow == ALL and key in world.done | world.expired
        if None in found.values() and not is_lost:
            raise Violation(f"A messages differ: {key} is {found}")
        # A record of a lost disk, too, may have come to some only where links are narrow.
        is_excused = world.narrow == ALL and key in world.exempt
        if set(found.values()) != {register} and not (is_excused or is_lost):
            raise Violation(f"A owners differ: {key} is {found}")
    available = {
        name: {message.key for message in machine.state.found(available=True)}
        for name, machine in machines.items()
    }
    deliverable = {name: machine.state.may_deliver() for name, machine in machines.items()}
    for key, register in one.items():
        there = [available[name] for name in holders[key] if key in views[name]]
        if not all(key in each for each in there) and not dead:
            raise Violation(f"V {key} is never available: {available}")
        owners = sum(key in there for there in deliverable.values())
        is_lacked = bool(world.narrow) and (
            register.owner not in holders[key] or key in world.exempt or key in world.done
        )
        # Its name may have been known to the dead one alone.
        if owners != 1 and not (is_lacked or (dead and register.owner in (dead, ""))):
            raise Violation(f"A {key} has {owners} owners: {register}")
    for name, machine in machines.items():
        for publisher, first, last in machine.state.early_keys():
            for sequence in range(first, min(last, first + 100) + 1):
                if (publisher, sequence) in world.instances[name].disk.held:
                    raise Violation(f"A {name} remembers {publisher, sequence}, which has left")


def consume(world: World, names: list[str], final: str) -> None:
    """A consumer must get all that is left; one at each, where not all of them have all."""
    everywhere = []
    for name in names if world.narrow else [final]:
        world.do("cnew", name, None)
        everywhere.append(f"c{world.clients_made}")
    for _ in range(CONSUMED_ROUNDS_MAX):
        pump(world, names, consume=True)
        world.now += 2
        for who in everywhere:
            while world.do("ack", who):
                pass
        is_empty = not any(world.instances[name].machine.state.depth for name in names)
        if is_empty and not any(world.instances[name].staged for name in names):
            break
    else:
        left = {name: list(world.instances[name].machine.state.found()) for name in names}
        raise Violation(f"V not consumed: {left}")
    for instance in world.instances.values():
        for rec, _ in instance.disk.journal:
            if rec.kind == "rm" and rec.why == "sent":
                world.done.update(rec.keys)
