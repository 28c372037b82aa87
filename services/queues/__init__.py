"""Queues: each message goes to one of many consumers, in all regions (pure)."""
