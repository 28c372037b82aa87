"""Plain values that the processes of a fabric start with."""
