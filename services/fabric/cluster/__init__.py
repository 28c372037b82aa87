"""The Ray cluster that a fabric runs on: its head, its nodes and its files."""
