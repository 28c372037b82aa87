"""One queue's owner, in a process of its own.

owner_server.OwnerServer(QueueOwnerConfig).run()    until its instance is gone
run_queue_owner                                     the same as a process, without Ray
"""
