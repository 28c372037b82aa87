"""The buffer of one capacity pool's slow clients, in a process of its own.

buffer_server.BufferServer(SlowClientBufferConfig).run()    until its instance is gone
run_slow_client_buffer                                      the same as a process, without Ray
"""
