"""Which instances there are, who they are, and whether two of them may be linked."""
