"""Reading a fabric over its client protocol, without its data directories."""
