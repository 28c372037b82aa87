"""What an instance and the processes beside it say to one another."""
