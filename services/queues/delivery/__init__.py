"""The delivery of a queue: its free messages, its consumers, their filters and their leases."""
