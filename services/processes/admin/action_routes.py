"""The actions of the administrator's interface over HTTP: `/amps/administrator/…` performs and
lists them, `/raylay/risk` says what an action costs now. The instance authorizes and performs each
of them itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from raylay.services.admin.actions import (
    AdminAction,
    action_at,
    action_of,
    actions_of,
    configured_paths,
    read_options,
)
from raylay.services.admin.fabric_view import HeadSight
from raylay.services.admin.requests import ROOT, ResourceRequest
from raylay.services.admin.risks import ActionRisk, curl_command, risk_of, shell_command
from raylay.services.admin.tree import Branch, Collection, Node, as_text, pruned
from raylay.services.errors import ConfigurationError, ControlRefused
from raylay.services.processes.admin.answers import error_answer, node_answer
from raylay.services.processes.admin.bodies import read_json
from raylay.services.processes.admin.instance_source import InstanceSource
from raylay.services.processes.admin.sampler import Sampler
from raylay.services.processes.admin.viewers import Viewer, Viewers

ANTI_FORGERY_HEADER = "X-Raylay"
"""Header that `check_origin` demands. A browser sends it for a page of another site only after
asking this interface (a CORS preflight), which refuses."""
_CHECKS = tuple(
    ("authorization", "entitlement", each, "amps-admin", "check")
    for each in ("transports", "transport")
)
"""Paths below `/amps/administrator` that answer whether the user may use another path; the
request's query names that path."""
_STATUS = "/amps/instance"
"""Path for which a user needs the permission `read` to see the status."""
_RESETS = frozenset(("reset_authentication", "reset_entitlement"))


def _dumped(value: object) -> str:
    return json.dumps(value, default=str, separators=(",", ":"))


class ActionRoutes:
    """See the file's docstring. Owner: the process's event loop.

    Args:
        name: the instance's name.
        get_actions: whether a GET request may perform an action, as documented.
    """

    def __init__(
        self,
        name: str,
        instance: InstanceSource,
        sampler: Sampler,
        viewers: Viewers,
        *,
        get_actions: bool,
        head: Callable[[], HeadSight | None] = lambda: None,
    ) -> None:
        self._name = name
        self._instance = instance
        self._sampler = sampler
        self._viewers = viewers
        self._get_actions = get_actions
        self._head = head

    async def administer(
        self, request: web.Request, asked: ResourceRequest, viewer: Viewer
    ) -> web.Response:
        """Answers a request for a path below `/amps/administrator`."""
        steps = asked.steps[1:]
        is_read = request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
        if steps in _CHECKS and is_read:
            allowed = viewer.may(request.query.get("path", ""))
            return web.Response(text=as_text(allowed), content_type="application/json")
        action = action_at(steps)
        if action is None:
            if is_read:
                return await self._list(asked, viewer)
            return error_answer(
                404,
                f"{self._name} has no action {'/'.join(steps)[:200]!r}: /amps/administrator.json "
                "lists those that there are",
            )
        if request.method == hdrs.METH_POST:
            check_origin(request)
        elif request.method != hdrs.METH_GET or not self._get_actions:
            raise web.HTTPMethodNotAllowed(
                request.method,
                ["POST"],
                reason=f"an action is sent by POST with the header {ANTI_FORGERY_HEADER}: 1; "
                "`get_actions` of `admin` allows the documented GET",
            )
        options = read_options(action.call, await self._body_of(request, action))
        arguments: dict[str, Any] = {**action.details, **options}
        result = await self._instance.perform(action.call, viewer.caller, arguments)
        if action.call in _RESETS:
            # Who is logged on here is asked anew, too.
            self._viewers.forget(options.get("of_user", ""))
        return web.json_response({"done": action.call, **action.details, "result": result})

    async def _body_of(self, request: web.Request, action: AdminAction) -> object:
        """Returns the JSON of a request's body. The parameters of an action of the configuration
        may stand in the query as well, as documented."""
        body = await read_json(request)
        if action.call != "run_action" or not request.query:
            return body
        if body is not None and not isinstance(body, dict):
            return body
        return {**request.query, **(body or {})}

    async def risk(self, request: web.Request, viewer: Viewer) -> web.Response:
        """Answers `/raylay/risk?path=amps/administrator/…`: what the action risks now, whether the
        user may perform it, and how curl and the shell do."""
        path = request.query.get("path", "")
        action = action_of(path)
        if action is None:
            return error_answer(404, f"{path[:200]!r} names no action of {self._name}")
        instance = (await self._sampler.tree())["instance"]
        assert isinstance(instance, Mapping), "the instance is a branch"
        found = risk_of(action, instance)
        allowed = viewer.may(action.path)
        why_not = found.refused
        if not allowed and not viewer.may(_STATUS):
            # What it risks now is told in values of the instance.
            found = ActionRisk(())
        if not allowed:
            who = viewer.user or "nobody in particular"
            why_not = f"{who} may not use {action.path}: its `admin` permissions do not allow it"
        return web.json_response(
            {
                "path": action.path.lstrip("/"),
                "verb": action.verb,
                "name": action.name,
                "risk": found.sentences,
                "typed": found.typed,
                "allowed": allowed and not found.refused,
                "why_not": why_not,
                "curl": self._curl(request, action, viewer),
                "raylay": shell_command(action, self._name),
                "effect": None
                if found.effect is None
                else {"path": found.effect.path, "value": found.effect.value},
                "takes": found.takes or None,
                "sampled_us": self._sampler.time_us,
            }
        )

    async def status(self, request: web.Request, viewer: Viewer) -> web.Response:
        """Answers `/raylay/status.json`, which is what the shell shows when Ray's head is away: the
        instance's status, and with `events_after=N` its events behind that number."""
        if not viewer.may(_STATUS):
            raise ControlRefused(f"{viewer.user or 'nobody in particular'} may not read {_STATUS}")
        text = request.query.get("events_after")
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 16):
            raise ConfigurationError(f"events_after={text[:40]!r} is no number of an event")
        found = await self._instance.status(None if text is None else int(text))
        head = self._head()
        if head is not None:
            found = {**found, "head": head.document()}
        return web.json_response(found, dumps=_dumped)

    def _curl(self, request: web.Request, action: AdminAction, viewer: Viewer) -> str:
        return curl_command(action, str(request.url.origin()), viewer.user)

    async def _list(self, asked: ResourceRequest, viewer: Viewer) -> web.Response:
        """Lists the actions that there are now, each with whether this user may perform it."""
        instance = (await self._sampler.tree())["instance"]
        assert isinstance(instance, Mapping), "the instance is a branch"
        configuration = self._sampler.snapshot.get("configuration", {})
        actions = actions_of(instance, viewer.may, configured_paths(configuration))
        if not viewer.may(_STATUS):
            # The names of clients, queues and topics are values of the instance, too.
            actions = _permitted(actions)
        tree: Branch = {"administrator": actions}
        try:
            node = pruned(tree, asked.steps)
        except KeyError as error:
            return error_answer(
                404, f"there is no {str(error.args[0])[:200]!r} below /{ROOT}/administrator"
            )
        return node_answer(node, asked.format or "json")


def _permitted(actions: Branch) -> Branch:
    """Returns the branch of actions without those that the user may not perform."""
    found: dict[str, Node] = {}
    for name, node in actions.items():
        if isinstance(node, Collection):
            kept = {key: _permitted(each) for key, each in node.branches.items()}
            found[name] = Collection(node.entry, {key: each for key, each in kept.items() if each})
        elif isinstance(node, Mapping):
            found[name] = _permitted(node)
        elif node:
            found[name] = node
    return found


def check_origin(request: web.Request) -> None:
    """Raises HTTPForbidden where a page of another site may have sent the request."""
    origin = request.headers.get(hdrs.ORIGIN)
    if ANTI_FORGERY_HEADER not in request.headers:
        raise web.HTTPForbidden(reason=f"an action needs the header {ANTI_FORGERY_HEADER}: 1")
    if origin is not None and not _is_own(origin, request.host):
        raise web.HTTPForbidden(reason="the request comes from a page of another site")


def _is_own(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False  # no browser writes such an address
