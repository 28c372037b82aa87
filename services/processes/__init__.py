"""The programs that run in child processes of an instance, a folder each. An instance starts them
and talks to them over a socket; they import nothing of its server but its configuration.

running.ProgramThread(kind, config, serve)    on a thread: what a program's actor holds
running.run_program(kind, read, serve)        as a process, without Ray
"""
