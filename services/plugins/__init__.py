"""Extensions that other packages register by Python's entry points: functions of filters, kinds of
message types, key generators of SOW topics."""
