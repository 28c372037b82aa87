"""Requirements on a host before a node of a fabric runs on it."""
