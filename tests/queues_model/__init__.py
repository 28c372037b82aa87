"""A tiny world of queues: production machines and doors, everything else a few lines each."""
