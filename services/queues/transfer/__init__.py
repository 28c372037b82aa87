"""The ownership of a queue's messages among instances, and how it moves."""
