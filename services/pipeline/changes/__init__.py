"""A SOW topic as change data capture: each change of a record, with its old and its new value."""
