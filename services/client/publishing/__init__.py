"""The publishing side of a client: its store, its numbers and what is sent next."""
