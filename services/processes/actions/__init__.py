"""The process beside an instance that runs its actions.

action_server.ActionServer(ActionRunnerConfig).run()    until its instance is gone
run_actions                                             the same as a process, without Ray
"""
