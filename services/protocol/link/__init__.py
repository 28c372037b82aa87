"""The protocol between instances over links."""
