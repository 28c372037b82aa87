"""The servers: shells around the pure machines of services/replication and services/subscriptions.

    config.InstanceConfig, DestinationConfig    plain values; `save(directory)`, `load(directory)`
    instance_server.InstanceServer(config, directory, start_child)
        await start()      listens, recovers, serves; raises ConfigurationError, StorageLocked, …
        await stop()       graceful; await finished() waits for it
        status() -> dict, events(after, limit) -> list[dict]
        parts              all that serves, once it has recovered (instance_parts.py):
            await parts.calls.downgrade(destination), … (control_calls.py)
        its parts never import this module: docs/architecture.md
    runner.InstanceThread(directory, name, start_child)
        the same on a thread of its own: what the actor holds
    run_instance                                the same as a process, without Ray

The data directory holds `instance.json` (config), `journal/` (LmdbJournal), `state.lmdb` and, where
the path is short enough, `links.sock`.

`status()` has: name, group, state (`recovering`, `catching_up`, `ready`, `failed`, `stopping`),
reason (why not ready, else empty), ready, pid, client_address, replication_address, and when it
serves: incarnation, transaction ids, counts, rates, sessions, subscriptions, upstreams and
destinations {name: {connected, sync, downgraded, safe, unacked, age_ms, lag, stored_txid, address,
pid, why, …}}.

`start_child` is called in a thread with the configuration of a link, a queue's owner or a buffer,
starts it and returns a handle with `kill()`. The *instance* starts a child again when its Unix
socket closes, with a growing pause: other programs that run children (an actor, a subprocess) must
not restart them, so their Ray actors have max_restarts=0.
"""
