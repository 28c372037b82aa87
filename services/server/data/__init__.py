"""The data directory of an instance: what is in it, recovered from it, and read of it."""
