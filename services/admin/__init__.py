"""The administrator's interface over HTTP (behaviour.md 9): the documented tree of resources, its
history, and the actions.

`fabric_view.py` has the view of the whole fabric and `fabric_problems.py` what is wrong in it, both
from the summaries (`fabric_summary.py`) of all instances and the configured topology
(`fabric_topology.py`).

`tree.py` has the nodes and their formats, `resources.py` the tree of an instance, made of its
snapshots (`snapshot_pages.py`), `requests.py` reads a request's path and query. `statistics.py` has
the rows of the history, which `storage/statistics.py` keeps. All of that is pure;
services/processes/admin serves it, and reads the host.
"""
