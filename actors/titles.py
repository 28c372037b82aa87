"""Titles of processes by what they run: `ray::East-1`, and a link `ray::East-1→East-2`."""

from __future__ import annotations

from typing import Any

import ray


def carry_name(actor: object, plain: type, name: str) -> None:
    """Ray names an actor's process after its class, anew behind every call: here the class that
    Ray made of `plain`, which no other actor of this process has, takes the actor's name. During a
    call it is `ray::Instance.status` as with any actor. Call it in the constructor; never raises.

    Args:
        actor: the actor; one that Ray does not run keeps the name of its class.
        plain: the actor's class, undecorated.
        name: title that `ps` and `top` show.
    """
    made = type(actor)
    if made is plain:
        return
    made.__name__ = name
    try:
        # After the constructor, Ray still has the class's former name: a call that does nothing
        # updates it.
        myself: Any = ray.get_runtime_context().current_actor
        myself.pid.remote()
    except Exception:  # a title is not worth a failed start
        return
