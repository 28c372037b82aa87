"""A history of what happened in a fabric, and the laws that it is judged by."""
