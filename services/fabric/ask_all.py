"""Questions to many instances at once, with one time for all answers: an instance that is silent
costs a command that time once, however many are.

    found = ask_all(names, status_of, 5.0)
    late = [name for name in names if name not in found]
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Key = TypeVar("Key")
Answer = TypeVar("Answer")


def ask_all(
    asked: Iterable[Key],
    ask: Callable[[Key], Answer],
    timeout_s: float | None,
) -> dict[Key, Answer]:
    """Calls a function for each of many at once, and returns the results that come in time, in the
    order of `asked`.

    Args:
        asked: the different values for which `ask` is called, each in a thread of its own.
        ask: function that asks one of them; it must not need the calling thread.
        timeout_s: time, in seconds, for all of them together; None: any.

    Raises:
        The first error that `ask` raised within the time.
    """
    wanted = [*asked]
    found = dict(answers(wanted, ask, timeout_s))
    return {each: found[each] for each in wanted if each in found}


def answers(
    asked: Iterable[Key],
    ask: Callable[[Key], Answer],
    timeout_s: float | None,
) -> Iterator[tuple[Key, Answer]]:
    """Calls a function for each of many at once, and yields each with its result as it comes, until
    the time is over. Arguments and errors are those of `ask_all`."""
    wanted = [*asked]
    came: queue.SimpleQueue[tuple[Key, Answer | None, BaseException | None]] = queue.SimpleQueue()

    def work(each: Key) -> None:
        try:
            came.put((each, ask(each), None))
        except BaseException as error:  # It is raised where the answers are awaited.
            came.put((each, None, error))

    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    for each in wanted:
        # A daemon: the command ends although a host gives no sign.
        threading.Thread(target=work, args=(each,), name="raylay-ask", daemon=True).start()
    for _ in wanted:
        left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
        try:
            each, answer, error = came.get(timeout=left_s)
        except queue.Empty:
            return
        if error is not None:
            raise error
        yield each, answer  # type: ignore[misc]  # None only where it is the answer
