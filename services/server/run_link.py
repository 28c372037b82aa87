"""`python -m raylay.services.server.run_link`: where an instance that runs since before an upgrade
looks for its links' program."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    # By name: the server does not know the program.
    runpy.run_module("raylay.services.programs.link.run_link", run_name="__main__")
