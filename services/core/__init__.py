"""The core of an instance, without sockets, clock, disk or threads.

One function puts it together for the server and the simulator, so what the simulator proves holds
for the server.
"""
