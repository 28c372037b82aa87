"""What the processes of a fabric start with: plain values."""
