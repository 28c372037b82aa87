"""What instances say to one another over links."""
