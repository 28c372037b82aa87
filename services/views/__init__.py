"""Views: values that are computed from each change of the topics under them (behaviour.md 4.6).
Pure."""
