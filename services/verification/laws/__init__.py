"""The laws that services/verification/checkers.py lists, and what is where in a history."""
