"""The interfaces of the other instances of a fabric, asked for their summaries.

They are asked only while a view is open, at most once a second, each with the credentials of the
user who looks, so that everybody sees what that user may see. One question to a peer is out at a
time, for a second at most: a peer that is silent or slow delays no other. What a peer says is
bounded in bytes and checked before it is used; one that lies is named, and harms nothing.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import ssl
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import (
    ClientConnectionError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    hdrs,
)
from yarl import URL

from raylay.services.admin.fabric_events import FabricEventBook
from raylay.services.admin.fabric_problems import ProblemBook
from raylay.services.admin.fabric_summary import (
    SUMMARY_BYTES_MAX,
    InstanceSummary,
    SummaryRefusal,
    read_summary,
)
from raylay.services.admin.fabric_topology import ConfiguredInstance, FabricTopology
from raylay.services.admin.fabric_view import Missing, PeerAnswer
from raylay.services.errors import ConfigurationError, ControlRefused, FabricError
from raylay.services.processes.admin.viewers import COOKIE, Viewer
from raylay.services.security.control import Caller
from raylay.services.telemetry import logs

SUMMARY_PATH = "/raylay/summary.json"
ASK_S = 1.0
"""Time, in seconds, that a peer has to send its summary; one of this age is asked for again."""
PATIENCE_S = 0.3
"""Time that a view waits for answers that are under way; those that come later are in the next."""
BOARDS_MAX = 16
"""Limit on the users whose boards are kept; the one that looked longest ago leaves."""
JSON_BYTES_MAX = 8 * 1024 * 1024
JSON_S = 5.0
HOP_HEADER = "X-Raylay-Hop"
"""Marks a request that an interface passes on: it is never passed on again."""
COOKIE_CHARACTERS = re.compile(r"[A-Za-z0-9_-]{1,200}")
CHUNK_BYTES = 64 * 1024
log = logs.get("admin_interface")

OwnSummary = Callable[[Viewer], Awaitable[InstanceSummary]]
"""Returns the summary of the own instance for a user; raises RaylayError."""


@dataclass(slots=True)
class _PeerState:
    """The knowledge of one peer."""

    summary: InstanceSummary | None = None
    answered_us: int | None = None
    answered_s: float | None = None
    asked_s: float | None = None
    missing: Missing = "never"
    text: str = ""
    cookie: str = ""
    running: asyncio.Task[None] | None = None

    def answer(self, now_s: float) -> PeerAnswer:
        age_s = None if self.answered_s is None else max(0.0, now_s - self.answered_s)
        return PeerAnswer(self.summary, self.answered_us, age_s, self.missing, self.text)


@dataclass(slots=True)
class PeerBoard:
    """The answers of the peers to one user.

    Attributes:
        events: the events of all instances that this user may see.
        problems: the problems in the views of this user.
        view: the last view, kept for a second: when it was made, and its text.
    """

    viewer: Viewer
    states: dict[str, _PeerState] = field(default_factory=dict)
    events: FabricEventBook = field(default_factory=FabricEventBook)
    problems: ProblemBook = field(default_factory=ProblemBook)
    view: tuple[float, bytes] | None = None
    making: asyncio.Task[None] | None = None


def authorization(caller: Caller) -> str:
    """Returns the `Authorization` header of credentials; empty: there are none."""
    if caller.user_id:
        pair = f"{caller.user_id}:{caller.password}".encode("utf-8", "surrogatepass")
        return "Basic " + base64.b64encode(pair).decode("ascii")
    return f"Bearer {caller.password}" if caller.password else ""


class FabricPeers:
    """See the file's docstring.

    Owner: the process's event loop. Lifecycle: `close` once.

    Args:
        instance: the own instance's name.
        own: returns the own instance's summary.
    """

    def __init__(
        self, instance: str, own: OwnSummary, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._instance = instance
        self._own = own
        self._clock = clock
        self._boards: OrderedDict[bytes, PeerBoard] = OrderedDict()
        self._session: ClientSession | None = None
        self._trust: tuple[tuple[str, str, bool], ssl.SSLContext] | None = None

    async def close(self) -> None:
        """Ends all questions and connections."""
        running = [
            state.running
            for board in self._boards.values()
            for state in board.states.values()
            if state.running is not None
        ]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._boards.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def board(self, viewer: Viewer) -> PeerBoard:
        """Returns the peers' answers to a user, made if the user has none."""
        caller = viewer.caller
        told = "\0".join((viewer.user, caller.user_id, caller.password))
        key = hashlib.sha256(told.encode("utf-8", "surrogatepass")).digest()
        found = self._boards.get(key)
        if found is None:
            found = self._boards[key] = PeerBoard(viewer)
            while len(self._boards) > BOARDS_MAX:
                _, old = self._boards.popitem(last=False)
                for state in old.states.values():
                    if state.running is not None:
                        state.running.cancel()
        # Permissions may have changed since.
        found.viewer = viewer
        self._boards.move_to_end(key)
        return found

    # -- summaries ---------------------------------------------------------------------------
    async def refresh(self, board: PeerBoard, topology: FabricTopology) -> None:
        """Asks those whose answer is older than a second, and waits a little for what is under
        way."""
        now_s = self._clock()
        names = {each.name for each in topology.instances}
        for name in board.states.keys() - names:
            state = board.states.pop(name)
            if state.running is not None:
                state.running.cancel()
        for peer in topology.instances:
            state = board.states.setdefault(peer.name, _PeerState())
            if state.running is not None:
                continue
            if state.asked_s is not None and now_s - state.asked_s < ASK_S:
                continue
            if not peer.url and peer.name != self._instance:
                state.missing, state.text = "none", ""
                continue
            state.asked_s = now_s
            state.running = asyncio.ensure_future(self._ask(board, state, peer, topology))
        running = [each.running for each in board.states.values() if each.running is not None]
        if running:
            await asyncio.wait(running, timeout=PATIENCE_S)

    def answers(self, board: PeerBoard) -> dict[str, PeerAnswer]:
        """Returns the last answer of each instance, by its name."""
        now_s = self._clock()
        return {name: state.answer(now_s) for name, state in board.states.items()}

    async def _ask(
        self,
        board: PeerBoard,
        state: _PeerState,
        peer: ConfiguredInstance,
        topology: FabricTopology,
    ) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                if peer.name == self._instance:
                    found = await self._own(board.viewer)
                else:
                    found = await self._fetch(board, state, peer, topology)
        except TimeoutError:
            self._missed(state, "silent", f"it did not answer within {ASK_S:g} s")
        except SummaryRefusal as error:
            self._missed(state, error.missing, str(error))
        except ControlRefused as error:
            self._missed(state, "not_entitled", str(error))
        except (FabricError, ConfigurationError) as error:
            self._missed(state, "silent", str(error))
        except (ClientError, OSError, ValueError) as error:
            self._missed(state, "silent", reason(error))
        except Exception:
            log.warning("admin_peer_failed", peer=peer.name, text=traceback.format_exc())
            self._missed(state, "silent", f"a fault of this interface: {self._instance}'s log says")
        else:
            state.summary, state.missing, state.text = found, "", ""
            state.answered_us, state.answered_s = time.time_ns() // 1000, self._clock()
            board.events.learn(peer.name, found.process, found.last_event, found.events)
        finally:
            state.running = None

    def _missed(self, state: _PeerState, missing: Missing, text: str) -> None:
        is_never = missing == "silent" and state.summary is None
        state.missing, state.text = "never" if is_never else missing, text[:500]

    async def _fetch(
        self,
        board: PeerBoard,
        state: _PeerState,
        peer: ConfiguredInstance,
        topology: FabricTopology,
    ) -> InstanceSummary:
        headers = self._headers(board, peer.name)
        async with self.session().get(
            URL(f"{peer.url}{SUMMARY_PATH}", encoded=True),
            headers=headers,
            allow_redirects=False,
            ssl=self.trust(topology),
            timeout=ClientTimeout(total=ASK_S),
        ) as response:
            await self._check(response, board, peer)
            data = await read_bounded(response, SUMMARY_BYTES_MAX, peer.name)
        self._keep_cookie(state, response)
        return read_summary(data, peer.name)

    async def _check(
        self, response: ClientResponse, board: PeerBoard, peer: ConfiguredInstance
    ) -> None:
        """Raises the error that the status of an answer stands for; an answer with status 200 has a
        summary."""
        status = response.status
        if status == 200:
            return
        if status in (401, 403):
            who = board.viewer.user or "nobody in particular"
            raise ControlRefused(f"{peer.name} does not let {who} read {SUMMARY_PATH}")
        if status == 404:
            raise SummaryRefusal(
                "version", f"{peer.name} has no {SUMMARY_PATH}: install one release on all hosts"
            )
        if status < 500:
            raise SummaryRefusal("wrong", f"{peer.name} answers with status {status}")
        raise FabricError(f"it answers with status {status}")

    # -- requests ----------------------------------------------------------------------------
    def session(self) -> ClientSession:
        """Returns the connections to peers. They keep no cookies: those of one user are no other
        one's."""
        if self._session is None:
            # Each question is bounded by its board: with a limit here, a silent peer's would be in
            # the way of others.
            self._session = ClientSession(
                connector=TCPConnector(limit=0, limit_per_host=0, ttl_dns_cache=60),
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                max_line_size=8_190,
                max_field_size=8_190,
            )
        return self._session

    def trust(self, topology: FabricTopology) -> ssl.SSLContext | bool:
        """Returns the TLS settings by which peers are trusted.

        Raises:
            FabricError: a file of authorities cannot be used.
        """
        if not (topology.ca_file or topology.ca_path) and topology.verify_name:
            return True
        key = (topology.ca_file, topology.ca_path, topology.verify_name)
        if self._trust is None or self._trust[0] != key:
            try:
                context = ssl.create_default_context(
                    cafile=topology.ca_file or None, capath=topology.ca_path or None
                )
            except (OSError, ssl.SSLError) as error:
                raise FabricError(f"{topology.ca_file or topology.ca_path}: {error}") from None
            context.check_hostname = topology.verify_name
            self._trust = key, context
        return self._trust[1]

    def request_headers(self, viewer: Viewer, peer: str) -> dict[str, str]:
        """Returns the headers of a request that is passed on to a peer for a user."""
        return {**self._headers(self.board(viewer), peer), HOP_HEADER: self._name_header()}

    def _headers(self, board: PeerBoard, peer: str) -> dict[str, str]:
        headers: dict[str, str] = {hdrs.ACCEPT_ENCODING: "identity"}
        said = authorization(board.viewer.caller)
        state = board.states.get(peer)
        if said:
            headers[hdrs.AUTHORIZATION] = said
        if said and state is not None and state.cookie:
            # Checked before the password, which takes the peer much longer.
            headers[hdrs.COOKIE] = f"{COOKIE}={state.cookie}"
        return headers

    def _name_header(self) -> str:
        return self._instance.encode("ascii", "replace").decode("ascii")[:200]

    @staticmethod
    def _keep_cookie(state: _PeerState, response: ClientResponse) -> None:
        cookie = response.cookies.get(COOKIE)
        if cookie is not None and COOKIE_CHARACTERS.fullmatch(cookie.value):
            state.cookie = cookie.value

    async def get_json(
        self, viewer: Viewer, topology: FabricTopology, name: str, path: str
    ) -> Mapping[str, Any]:
        """Returns an answer of a peer to a user.

        Args:
            path: with its query, encoded.

        Raises:
            ConfigurationError: there is no such peer.
            ControlRefused: the peer does not let the user read it.
            FabricError: the peer does not answer, or not with JSON.
        """
        peer = topology.instance(name)
        if peer is None or not peer.url:
            raise ConfigurationError(f"no interface of an instance {name[:200]!r} is known")
        url = URL(f"{peer.url}/{path.lstrip('/')}", encoded=True)
        try:
            async with (
                asyncio.timeout(JSON_S),
                self.session().get(
                    url,
                    headers=self.request_headers(viewer, name),
                    allow_redirects=False,
                    ssl=self.trust(topology),
                ) as response,
            ):
                data = await read_bounded(response, JSON_BYTES_MAX, name)
        except TimeoutError:
            raise FabricError(f"{name} did not answer within {JSON_S:g} s") from None
        except (ClientError, OSError, ValueError) as error:
            raise FabricError(f"{name} does not answer: {reason(error)}") from None
        except SummaryRefusal as error:
            raise FabricError(str(error)) from None
        if response.status in (401, 403):
            raise ControlRefused(f"{name} does not let {viewer.user or 'nobody'} read {path[:200]}")
        try:
            found = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            found = None
        if response.status != 200 or not isinstance(found, dict):
            said = found.get("error") if isinstance(found, dict) else ""
            raise FabricError(
                f"{name} answers with status {response.status}"
                + (f": {str(said)[:500]}" if said else "")
            )
        return found


async def read_bounded(response: ClientResponse, bytes_max: int, name: str) -> bytes:
    """Returns the body of an answer.

    Raises:
        SummaryRefusal: it has more bytes, or is compressed although that was not asked for.
    """
    if response.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise SummaryRefusal("wrong", f"{name} answers in a form that was not asked for")
    found = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        found += chunk
        if len(found) > bytes_max:
            response.close()
            raise SummaryRefusal(
                "wrong", f"{name} answers with more than {bytes_max:,} bytes: too large"
            )
    return bytes(found)


def reason(error: Exception) -> str:
    """Returns why a connection fails, in words."""
    if isinstance(error, ClientSSLError):
        return f"its TLS certificate is not trusted, or it speaks no TLS: {str(error)[:200]}"
    if isinstance(error, ClientConnectionError) and isinstance(error, OSError):
        return f"no connection: {error.strerror or str(error)[:200]}"
    return f"{type(error).__name__}: {str(error)[:200]}"
