"""Limits on the memory and disk of an instance that its clients hold, and the choice of the client
to disconnect above them. Decisions only: the caller reports what is held and performs the answer
(docs/capacity.md)."""
