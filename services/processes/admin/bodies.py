"""The bodies of requests to the administrator's interface, read within bounds of size and time.

A body that comes too slowly would keep its place among the requests that are answered; one that no
text or JSON can be made of is refused, whatever is wrong with it.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestPayloadError

from raylay.services.errors import ConfigurationError

BODY_S_MAX = 10.0
"""Time that a request has for its body."""


async def read_body(request: web.Request) -> bytes:
    """Returns the body of a request.

    Raises:
        HTTPRequestTimeout: it did not come in time.
        HTTPRequestEntityTooLarge: it has too many bytes.
        ConfigurationError: it is compressed, or broken off.
    """
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise ConfigurationError("the body is compressed: send it as it is")
    try:
        async with asyncio.timeout(BODY_S_MAX):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            reason=f"the body did not come within {BODY_S_MAX:g} s: send it at once"
        ) from None
    except RequestPayloadError:
        raise ConfigurationError("the body cannot be read: it is broken off or garbled") from None


async def read_json(request: web.Request) -> object:
    """Returns the JSON of a request's body, in UTF-8; None: there is no body.

    Raises:
        ConfigurationError: it is no JSON, or has a text that is none; and as `read_body`.
    """
    body = await read_body(request)
    if not body.strip():
        return None
    try:
        text = body.decode("utf-8")
        found: object = json.loads(text)
        # An escape can name half of a character, which nothing can send on.
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(
            "the body has half of a character, such as \\ud800, in a text: send whole ones"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigurationError("the body is no JSON: leave it out, or send an object") from None
    return found
