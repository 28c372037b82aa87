"""The run of `raylay publish`: reads lines, publishes them with one client, and prints a summary,
however it ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raylay.services.commands.shared.connection_log import ConnectionLog
from raylay.services.commands.shared.printing import echo
from raylay.services.errors import CommandFailed, FlushTimeout, RaylayError

if TYPE_CHECKING:
    from raylay.services.client import Client, PublishFailed

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
WAIT_TOLD_S = 5.0
"""Time without an acknowledgment after which the command prints why it waits."""
WAIT_TOLD_AGAIN_S = 60.0
LAST_ACKS_S = 1.0
"""Time after Ctrl-C in which the command still waits for acknowledgments."""
INPUT_BYTES = 64 * 1024
INPUTS_WAITING_MAX = 16
"""Most pieces of input that are read ahead of the client."""


@dataclass(slots=True)
class PublishResult:
    """The result of the command."""

    published: int = 0
    """Number of messages that the client took. One that it took just before it was interrupted
    counts, because it is sent as the others are."""
    persisted: int = 0
    unjournaled: int = 0
    """Number of messages that were delivered to live subscribers only, because no instance journals
    their topic."""
    refused: int = 0
    seconds: float = 0.0
    bookmark: str = ""
    """Bookmark of the last persisted message; empty: none is."""
    interrupted: bool = False
    refusal: RaylayError | None = None
    """Error of the first message that was refused."""

    def line(self) -> str:
        """Formats the result as one line."""
        told = f"{self.persisted:,} persisted"
        if self.unjournaled:
            aside = f"{self.unjournaled:,} delivered to live subscribers, not journaled"
            told = f"{told}; {aside}" if self.persisted else aside
        told += f" in {self.seconds:.3f} s"
        if self.bookmark:
            told += (
                f", the last one {self.bookmark}" if self.published > 1 else f": {self.bookmark}"
            )
        if self.refused:
            told += f"; {self.refused:,} refused"
        left = self.published - self.persisted - self.unjournaled - self.refused
        if left:
            told += f"; {left:,} were not answered, and may be persisted or not"
        return f"interrupted: {told}" if self.interrupted else told

    def as_json(self) -> dict[str, Any]:
        """Returns the result for programs: counts in messages, the time in seconds."""
        return {
            "published": self.published,
            "persisted": self.persisted,
            "unjournaled": self.unjournaled,
            "refused": self.refused,
            "seconds": round(self.seconds, 6),
            "bookmark": self.bookmark or None,
            "interrupted": self.interrupted,
        }


async def publish_lines(
    options: dict[str, Any],
    topic: str,
    body: str | None,
    values: dict[str, Any],
    *,
    delta: bool = False,
    count: int = 1,
    source: int | None = None,
) -> PublishResult:
    """Publishes the body, or each line of the input as it arrives, and waits until all is answered.
    After Ctrl-C no further line is taken, and the command waits a second for what was sent.

    Args:
        options: the options of the client.
        body: the message; None: there is a message on each line of the input.
        values: the message type, the key and the expiry of each publish.
        count: how often the body is published; where it is several times, `{n}` in it is the number
            of the message, from 1.
        source: descriptor of the input; None: the standard input.
        delta: whether the messages are deltas: changed fields of SOW records.

    Raises:
        RaylayError: no server accepted the client, or it ended; a summary was printed before.
    """

    async def publish(client: Client) -> None:
        await _publish_all(
            client.delta_publish if delta else client.publish,
            topic,
            _bodies(body, count) if body is not None else _input_lines(source),
            values,
        )

    return await _with_client(options, publish)


async def send_once(
    options: dict[str, Any], send: Callable[[Client], Awaitable[object]]
) -> PublishResult:
    """Sends one command that is acknowledged as a publish is, and waits for the answer. Raises as
    `publish_lines`."""

    async def once(client: Client) -> None:
        await send(client)

    return await _with_client(options, once)


async def send_several(
    options: dict[str, Any], send: Callable[[Client], Awaitable[int]]
) -> PublishResult:
    """Sends commands that return how many they were, and waits for the answers, as `send_once`
    does."""

    async def several(client: Client) -> None:
        await send(client)

    return await _with_client(options, several)


async def _flush_and_tell(client: Client) -> None:
    """Waits for the last acknowledgment, and prints the reason of a long wait."""
    for wait_s in itertools.chain((WAIT_TOLD_S,), itertools.repeat(WAIT_TOLD_AGAIN_S)):
        try:
            return await client.flush(wait_s)
        except FlushTimeout as waiting:
            echo(f"raylay: still waiting: {waiting}", err=True)


async def _with_client(
    options: dict[str, Any], publish: Callable[[Client], Awaitable[None]]
) -> PublishResult:
    from raylay.services.client import Client

    done = PublishResult()
    lines = ConnectionLog()
    started_s = time.monotonic()

    def failed(event: PublishFailed) -> None:
        done.refused += 1
        done.refusal = done.refusal or event.error

    client: Client | None = None
    first = 0
    try:
        async with Client(**options, on_event=lines, on_publish_failed=failed) as client:
            first = client.last_sequence + 1
            try:
                await publish(client)
                await _flush_and_tell(client)
            except asyncio.CancelledError:
                done.interrupted = True
                take_back_cancel()
                try:
                    await client.flush(LAST_ACKS_S)
                except TimeoutError:
                    pass
            except RaylayError as error:
                done.refusal = done.refusal or error
            _count(client, done, first)
            await client.close(flush=False)  # What is answered by now is known.
    except asyncio.CancelledError:
        done.interrupted = True
        take_back_cancel()
    finally:
        lines.finish()
    done.seconds = time.monotonic() - started_s
    if done.refused > 1 and isinstance(done.refusal, CommandFailed):
        done.refusal = _of_many(done.refusal, done.refused)
    return done


def _of_many(first: CommandFailed, refused: int) -> CommandFailed:
    return CommandFailed(
        first.command, first.reason, f"{refused:,} messages were refused; the first: {first}"
    )


def take_back_cancel() -> None:
    """Takes back the cancellation by Ctrl-C, so that the cancelled work, which is nearly done, ends
    by itself. A second Ctrl-C ends it."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def _count(client: Client, done: PublishResult, first: int) -> None:
    settled = client.persisted_sequence
    done.published = client.last_sequence - first + 1
    done.unjournaled = client.unjournaled_messages
    answered = min(settled - first + 1, done.published)
    done.persisted = max(0, answered - done.refused - done.unjournaled)
    if done.persisted:
        done.bookmark = f"{client.publisher}|{settled}|"


async def _publish_all(
    publish: Callable[..., Awaitable[int]],
    topic: str,
    pieces: AsyncIterator[Iterable[bytes]],
    values: dict[str, Any],
) -> None:
    async for bodies in pieces:
        for body in bodies:
            await publish(topic, body, **values)


async def _bodies(body: str, count: int) -> AsyncIterator[Iterable[bytes]]:
    if count == 1:
        yield (body.encode(),)
    else:
        yield (body.replace("{n}", str(number)).encode() for number in range(1, count + 1))


async def _input_lines(source: int | None) -> AsyncIterator[Iterable[bytes]]:
    """Yields the whole lines of each piece of the input, as it arrives.

    A thread reads the input, because waiting for it must not keep the client from its socket. The
    thread is a daemon and reads the descriptor itself, so that no lock is held when the process
    ends in the middle of a line.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(INPUTS_WAITING_MAX)
    descriptor = sys.stdin.fileno() if source is None else source

    def read() -> None:
        piece: bytes | OSError = b""
        while True:
            room.acquire()
            try:
                piece = os.read(descriptor, INPUT_BYTES)
            except OSError as error:
                piece = error
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:  # The loop is closed: nobody wants it any more.
                return
            if not piece or isinstance(piece, OSError):
                return

    threading.Thread(target=read, name="raylay-input", daemon=True).start()
    rest: list[bytes] = []
    while True:
        piece = await pieces.get()
        room.release()
        if isinstance(piece, OSError):
            raise RaylayError(f"the input cannot be read: {piece.strerror}")
        if not piece:
            break
        first, *others = piece.split(b"\n")
        rest.append(first)
        if others:
            yield [line.removesuffix(b"\r") for line in (b"".join(rest), *others[:-1])]
            rest = [others[-1]]
    last = b"".join(rest)
    if last:
        yield [last.removesuffix(b"\r")]
