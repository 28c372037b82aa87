"""What a process tells of itself: traces, metrics and logs."""
