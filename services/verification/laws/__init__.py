"""The laws that services/verification/checkers.py lists, and the state of every journal that they
need."""
