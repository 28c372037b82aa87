"""The administrator's interface of one instance, in a process of its own beside the instance's
loop (behaviour.md 9).

`application.py` answers HTTP, `viewers.py` says who asks and what that user may see and do,
`sampler.py` asks the instance for its values at most once a second, however many requests come.
"""
