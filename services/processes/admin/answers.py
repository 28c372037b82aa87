"""The answers of the administrator's interface: a node of the tree in a format, an error as a
sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

from raylay.services.admin.requests import ROOT, Format
from raylay.services.admin.tree import Node, to_json, to_xml

CONTENT_TYPES: Mapping[Format, str] = {
    "json": "application/json",
    "xml": "application/xml",
    "csv": "text/csv",
}


def node_answer(node: Node, kind: Format) -> web.Response:
    """Returns a node below `/amps` as XML, or else as JSON."""
    body = to_xml(ROOT, node) if kind == "xml" else to_json({ROOT: node})
    kind = "xml" if kind == "xml" else "json"
    return web.Response(body=body, content_type=CONTENT_TYPES[kind], charset="utf-8")


def error_answer(status: int, text: str) -> web.Response:
    """Returns an error: a sentence that says what happened, where, and what to do."""
    return web.Response(
        status=status, text=json.dumps({"error": text}), content_type="application/json"
    )
