"""Inspection of the files of instances from another process, running or not: their kind, their
contents, and the lines and messages in them."""
