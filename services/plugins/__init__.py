"""What other packages bring by Python's entry points, for who reads a configuration and for who
runs it: functions of filters, kinds of message types, and what makes the keys of SOW topics."""
