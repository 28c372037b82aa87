"""Checks of a fabric before it runs: its topology, what strangers may read of it, and who is let
in."""
