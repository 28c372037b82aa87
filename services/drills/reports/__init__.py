"""The result of a drill for people and for programs."""
