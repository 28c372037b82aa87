"""The deterministic simulator: a whole fabric in one process, one seed deciding everything."""
