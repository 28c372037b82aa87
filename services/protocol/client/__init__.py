"""What clients and instances say to one another."""
