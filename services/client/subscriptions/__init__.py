"""The subscriptions and queries of a client, and how each goes on after a reconnect."""
