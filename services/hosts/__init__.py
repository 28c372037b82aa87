"""Requirements on a machine before a node of a fabric runs on it."""
