"""Latencies of messages, from the traces of a fabric."""
