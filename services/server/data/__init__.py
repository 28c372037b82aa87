"""The data directory of an instance: its files, the recovery from them, and the reads of its
journal."""
