"""One destination's link, in a process of its own.

link_server.LinkServer(LinkConfig).run()    until its instance is gone
run_link                                    the same as a process, without Ray
"""
