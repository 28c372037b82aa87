"""The protocol between clients and instances."""
