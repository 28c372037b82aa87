"""A query of a SOW topic, from its words to its rows."""
