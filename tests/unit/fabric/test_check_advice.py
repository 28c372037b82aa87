"""What `raylay fabric check` advises is right: followed to the end, it leaves a fabric without an
error, whatever queues there are and whatever of them the links take."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks.check import check_settings, impossible
from raylay.services.topology.check import TopologyFinding

pytestmark = pytest.mark.covers("Replication", "what a link takes of a queue")

KINDS = ("local", "queue", "group_local")
STEPS_MAX = 12
Link = dict[str, Any]


class Draft:
    """A fabric of two instances as somebody writes it, and changes it as advised."""

    def __init__(
        self,
        kind: str,
        underlying: str,
        log: list[str],
        taken: list[str],
        *,
        both_ways: bool,
        group: str,
        excluded: bool = False,
    ) -> None:
        self.queue = f"name: work, message_type: json, kind: {kind}"
        if underlying:
            self.queue += f", underlying: {underlying}"
        if kind == "group_local":
            self.queue += ", initial_owner: a, domain: d"
        self.log = log
        self.group = group
        self.without_queue: set[str] = set()
        self.links: list[Link] = []
        for source, target in (("a", "b"), ("b", "a"))[: 1 + both_ways]:
            self.links.append(self.link(source, target, topics=list(taken)))
            if excluded:
                self.links[-1]["exclude_validation"] = ["replicate", "cascade"]

    def link(self, source: str, target: str, **more: Any) -> Link:
        return {"from": source, "to": [target], "mode": "sync", "pass_through": ".*", **more}

    def text(self) -> str:
        instances = "\n".join(
            f"  {name}: {{group: {group}{', queues: []' if name in self.without_queue else ''}}}"
            for name, group in (("a", "g"), ("b", self.group))
        )
        links = "\n".join(f"  - {each!r}" for each in self.links)
        return (
            f"fabric: f\ntopics: {self.log!r}\ninstances:\n{instances}\n"
            f"queues:\n  - {{{self.queue}}}\nlinks:\n{links}\n"
        )

    def findings(self) -> list[TopologyFinding]:
        try:
            return check_settings(parse(self.text(), "f.yaml")).findings
        except ConfigurationError as error:
            return impossible(error).findings

    # -- what is advised -----------------------------------------------------------------------
    def follow(self, advice: str) -> None:
        """Does what a finding advises; the first way, where it names two."""
        for pattern, change in (
            (r"narrow its topics, as by (\S+),", self._narrow),
            (
                r"add topic (.+?)(?: and PassThrough '(\S+)')? to destination (\w) of (\w)",
                self._add,
            ),
            (
                r"give (\w) a (?:sync )?destination to (\w)(?:, (?:a?sync), PassThrough '(\S+?)')?"
                r"(?:, topics '(\S+)')?(?: that takes topics (\S+) and (\S+),)?",
                self._give,
            ),
            (r"give (\w) a Destination to Group '(\w)'", self._give_group),
            (r"add a Topic for it to Destination '(\w)' of (\w)", self._add_named),
            (r"write PassThrough '(\S+)' at destination (\w) of (\w)", self._pass),
            (r"add it to topics", self._log),
        ):
            found = re.search(pattern, advice)
            if found is not None:
                self.advice = advice
                change(*found.groups())
                return
        pytest.fail(f"nobody can follow this: {advice}\n{self.text()}")

    def _of(self, source: str, target: str) -> Link:
        return next(each for each in self.links if (each["from"], each["to"]) == (source, [target]))

    def _narrow(self, topics: str) -> None:
        target, source = re.search(  # type: ignore[union-attr]
            r"destination (\w) of (\w) takes", self.problem
        ).groups()
        self._of(source, target)["topics"] = [topics]

    def _add(self, topics: str, passing: str | None, target: str, source: str) -> None:
        link = self._of(source, target)
        link["topics"] = [*link["topics"], *topics.split(", ")]
        if passing:
            link["pass_through"] = passing

    def _add_named(self, target: str, source: str) -> None:
        # Of topics that two expressions have in common, the narrower one is enough.
        topic = re.search(r"replicates (\S+)(?: in (\S+))? \(", self.problem)
        assert topic is not None
        named = topic[2] if topic[1] == ".*" and topic[2] else topic[1]
        self._of(source, target)["topics"].append(named)

    def _give(
        self, source: str, target: str, passing: str | None, topics: str | None, *two: str | None
    ) -> None:
        taken = [each for each in two if each] or ([topics] if topics else [".*"])
        self.links.append(
            self.link(source, target, topics=taken) | ({"pass_through": passing} if passing else {})
        )

    def _give_group(self, source: str, group: str) -> None:
        self._give(source, "a" if group == "g" and source == "b" else "b", ".*", None)

    def _pass(self, passing: str, target: str, source: str) -> None:
        self._of(source, target)["pass_through"] = passing

    def _log(self) -> None:
        topic = re.search(r"no journaled topic takes (\S+) of type", self.problem)
        assert topic is not None
        self.log.append(topic[1])

    def heal(self) -> None:
        """Follows the first advice of an error that is left, until there is none."""
        for _ in range(STEPS_MAX):
            left = [each for each in self.findings() if each.severity == "error"]
            if not left:
                return
            self.problem = f"{left[0].explanation}: {left[0].repair}"
            self.follow(left[0].repair if left[0].kind != "clash" else left[0].explanation)
        pytest.fail(f"never without an error: {left}\n{self.text()}")


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("group", ["g", "h"])
@pytest.mark.parametrize("kind", KINDS)
def test_whoever_follows_what_is_advised_has_no_error_left(
    kind: str, group: str, both_ways: bool
) -> None:
    taken = (["orders"], ["work"], ["orders", "work"], [".*"], ["^(?!work$)"], ["^o"])
    for underlying, log, topics, excluded in itertools.product(
        ("orders", "^orders/", ""), (["orders"], ["orders", "work"], [".*"]), taken, (False, True)
    ):
        more = {"both_ways": both_ways, "group": group, "excluded": excluded}
        if underlying.startswith("^"):
            draft = Draft(kind, f"'{underlying}', publish_target: orders/x", log[:], topics, **more)
        else:
            draft = Draft(kind, underlying, log[:], topics, **more)
        draft.heal()
