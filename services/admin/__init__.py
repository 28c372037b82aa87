"""The administrator's interface over HTTP (behaviour.md 9): the documented tree of resources, its
history, and the actions.

`tree.py` has the nodes and their formats, `resources.py` the tree of an instance and `host.py` that
of its host, `requests.py` reads a request's path and query. All of that is pure but for `host.py`,
which reads the operating system. `storage/statistics.py` keeps the history.
"""
