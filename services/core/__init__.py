"""The core of an instance, without sockets, clock, disk or threads.

The server and the simulator build it in one place: what is proven of one is what the other runs.
"""
