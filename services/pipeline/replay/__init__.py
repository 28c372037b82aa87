"""The job that publishes the messages of journals or of a lake again."""
