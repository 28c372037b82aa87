"""The servers: shells around the pure machines of services/replication and services/subscriptions.

    config.InstanceConfig, DestinationConfig    plain values; `save(directory)`, `load(directory)`
    instance_server.InstanceServer(config, directory, link_factory)
        await start()      listens, recovers, serves; raises ConfigurationError, StorageLocked, …
        await stop()       graceful; await finished() waits for it
        status() -> dict, events(after, limit) -> list[dict]
        await calls.downgrade(destination), calls.upgrade(destination), … (control_calls.py)
        its parts, which import it never: docs/architecture.md
    runner.InstanceThread(directory, name, link_factory)
        the same on a thread of its own: what the actor holds
    run_instance                                the same as a process, without Ray

The data directory holds `instance.json` (config), `journal/` (LmdbJournal), `state.lmdb` and, where
the path is short enough, `links.sock`.

`status()` has: name, group, state (`recovering`, `catching_up`, `ready`, `failed`, `stopping`),
reason (why not ready, else empty), ready, pid, client_address, replication_address, and when it
serves: incarnation, transaction ids, counts, rates, sessions, subscriptions, upstreams and
destinations {name: {connected, sync, downgraded, safe, owed, age_ms, lag, stored_txid, address,
pid, why, …}}.

A LinkFactory is called in a thread with a LinkConfig, starts the link and returns a handle with
`kill()`. The *instance* starts a link again when its Unix socket closes, with a growing pause:
whoever starts links for it (an actor, a subprocess) must not restart them, so Ray actors of links
have max_restarts=0.
"""
