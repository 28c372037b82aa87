"""Limits on what the clients of an instance hold of its memory and its disk, and the choice of the
client to disconnect above them. Decisions only: the caller reports what is held and performs the
answer (docs/capacity.md)."""
