"""The DestinationLink actor."""

from __future__ import annotations

from raylay.actors.program import Program
from raylay.services.config.instance import LinkConfig
from raylay.services.processes.link.run_link import serve


class DestinationLink(Program):
    """One destination's link.

    Args:
        config: a LinkConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        made = LinkConfig.from_json(config)
        title = f"{made.instance}→{made.destination.name}"
        super().__init__(DestinationLink, title, "link", made, serve)
