"""The processes that an instance starts beside itself, and keeps running."""
