"""The administrator's interface over HTTP (behaviour.md 9): the documented tree of resources, its
history, and the actions.

`fabric_view.py` has the view of the whole fabric and `fabric_problems.py` what is wrong in it, both
from the summaries (`fabric_summary.py`) of all instances and the configured topology
(`fabric_topology.py`).

`tree.py` has the nodes and their formats, `resources.py` the tree of an instance and `host.py` that
of its host, `requests.py` reads a request's path and query. All of that is pure but for `host.py`,
which reads the operating system. `storage/statistics.py` keeps the history.
"""
