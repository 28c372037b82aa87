"""The laws that checkers.py lists, and what is where in a history."""
