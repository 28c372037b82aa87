"""What a machine must have before a node of a fabric runs on it."""
