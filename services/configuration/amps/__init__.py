"""AMPSConfig files: what they may say, and what of it runs."""
