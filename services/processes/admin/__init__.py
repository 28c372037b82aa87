"""The administrator's interface of one instance, in a process of its own beside the instance's
loop (behaviour.md 9).

`guard.py` is what every request passes, `resource_routes.py` answers for the documented tree,
`viewers.py` says who asks and what that user may see and do,
`sampler.py` asks the instance for its values at most once a second, however many requests come.
"""
