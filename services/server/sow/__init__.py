"""The SOW topics of an instance: their store on disk, and copies of it."""
