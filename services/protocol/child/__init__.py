"""The protocol between an instance and its child processes."""
