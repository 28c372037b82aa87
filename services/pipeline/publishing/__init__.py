"""Tables and streams published to a fabric."""
