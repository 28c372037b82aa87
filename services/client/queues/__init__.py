"""The consumers of queues in a client, and their acknowledgments."""
