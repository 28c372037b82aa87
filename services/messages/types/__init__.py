"""Message types: one file for each, behind one interface (base.py).

A type reads a body into a tree, writes a tree as a body, merges a delta into a stored body and
says what changed between two. `registry.py` finds a type by its name. docs/message-types.md
(behaviour.md 6 and 4.7).
"""
