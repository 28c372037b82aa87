"""The links of an instance: those that it dials, and those that other instances dial to it."""
