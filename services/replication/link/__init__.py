"""The sending half of replication: what goes to one destination, and when."""
