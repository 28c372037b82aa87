"""The State of the World: the last value of each key of a topic (behaviour.md 4).

`keys.py` says which record a message belongs to (docs/message-types.md), `state.py` what a topic
holds, `query/record_scan.py` what there was when a query began; `storage/sow.py` has it on disk.
"""
