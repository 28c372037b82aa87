"""What other packages bring by Python's entry points, for who reads a configuration and for who
runs it: functions of filters, and kinds of message types."""
