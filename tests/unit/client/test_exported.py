"""Everything that the public documentation names is exported by `raylay`."""

from __future__ import annotations

import ast
import collections.abc
import contextlib
import inspect
import pathlib
import re
import typing
from functools import cache
from pathlib import Path

import pytest

import raylay

pytestmark = pytest.mark.covers("Clients and protocol", "an editor knows the public names")

ROOT = Path(__file__).parents[3]
COMPOUND = re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z0-9]*)+\b")
"""A name of several words: a single word may begin a sentence."""
NAME = re.compile(r"\b[A-Z]\w*\b")
MADE_BY_THE_CLIENT = ("Subscription", "SyncSubscription", "SowQuery", "SyncQuery", "QueueConsumer")
MADE_BY_THE_CLIENT += ("SyncQueueConsumer", "Message", "MessageBatch", "QueueMessage", "QueueBatch")
MADE_BY_THE_CLIENT += ("ReaderCommands", "SyncReaderCommands")
"""Classes that an application does not construct: the types of their constructors are internal."""
INTERNAL = {
    "SowReplay": "a Subscription, named for those who read its rules",
    "Value": "the variable of the type of bodies",
    "Record": "`Message.record`, for those who check records themselves",
    "SequenceRange": "a tuple",
    "Range": "a tuple",
    "SequenceSet": "a value of PublisherRanges, which a script gets and does not make",
    "RemoteProtocolError": "of bytes from a server, which a script does not read",
    "Mode": "two words",
    "ModuleLike": "a text or a mapping",
    "TopicLike": "a text or a mapping",
    "NodePlace": "a host of Ray, as a report of a move has it",
    "BookmarkStore": "a Protocol that the stores have",
    "PublishStore": "a Protocol that the stores have",
    "ActionModule": "a Protocol that Action, If and Do have",
}


@cache
def defined() -> set[str]:
    """Returns the names of all public classes and type aliases of the project."""
    found = set()
    for part in ("services", "storage"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    found.add(node.name)
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    name = node.targets[0].id
                    found |= {name} if name[0].isupper() and not name.isupper() else set()
    known = (typing, collections.abc, pathlib, contextlib)
    return {name for name in found if not any(hasattr(each, name) for each in known)}


def named_by(exported: str) -> set[str]:
    """Returns the names in the docstrings and the signatures of an exported class or function."""
    thing = getattr(raylay, exported)
    if not callable(thing) or not getattr(thing, "__module__", "").startswith("raylay"):
        return set()
    members = [thing]
    for name, member in vars(thing).items() if inspect.isclass(thing) else ():
        is_made = name == "__init__" and exported not in MADE_BY_THE_CLIENT
        if is_made or not name.startswith("_"):
            members.append(getattr(member, "fget", None) or getattr(member, "__func__", member))
    found: set[str] = set()
    for member in members:
        found |= set(COMPOUND.findall(getattr(member, "__doc__", "") or ""))
        if inspect.isfunction(member):
            found |= set(NAME.findall(str(inspect.signature(member))))
    return found


def is_of_settings(name: str) -> bool:
    """Whether it is a section of a fabric's settings, which scripts write as a mapping: the classes
    of its own fields need no name in a script."""
    return name.endswith(("Settings", "Config", "Policy", "Definition"))


@pytest.mark.parametrize("exported", [name for name in raylay.__all__ if not is_of_settings(name)])
def test_what_is_named_is_exported(exported: str) -> None:
    names = named_by(exported) & defined()
    assert sorted(names - set(raylay.__all__) - set(INTERNAL)) == []


def test_the_names_of_a_docstring_and_of_a_signature_are_found() -> None:
    assert {"LogonRefused", "NoSafeInstance", "TlsConfig", "ClientEvent"} <= named_by("Client")
