"""The links of an instance: those that it dials, and those of others."""
