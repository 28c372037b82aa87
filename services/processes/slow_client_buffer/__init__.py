"""What waits for the slow clients of one capacity pool, in a process of its own.

buffer_server.BufferServer(SlowClientBufferConfig).run()    until its instance is gone
run_slow_client_buffer                                      the same as a process, without Ray
"""
