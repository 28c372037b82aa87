"""What the clients of an instance may hold of its memory and its disk, and who goes when they hold
more. Decisions only: what is held is told, what is to be done is answered (docs/capacity.md).
"""
