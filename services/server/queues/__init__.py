"""The queues of an instance, whose owners are processes of their own."""
