"""The history of a run, and the laws that judge it."""
