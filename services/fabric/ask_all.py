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
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

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


class RepeatedAsk(Generic[Key, Answer]):
    """Asks many again and again, such as for their latest events. One that was late once is not
    waited for any more: each round takes its answer if that has come, and asks it only then again.

    Args:
        ask: function that asks one of them, in a thread.
        timeout_s: time, in seconds, that those have together that a round asks.
    """

    def __init__(self, ask: Callable[[Key], Answer], timeout_s: float) -> None:
        self._ask = ask
        self._timeout_s = timeout_s
        self._pending: dict[Key, Future[Answer]] = {}
        self._late: set[Key] = set()

    def round(self, asked: Iterable[Key]) -> dict[Key, Answer]:
        """Returns the answers that have come by the end of a round. Raises the error of the first
        one that `ask` failed for."""
        begun = {each: self._begin(each) for each in asked if each not in self._pending}
        wait([future for each, future in begun.items() if each not in self._late], self._timeout_s)
        done = [each for each, future in self._pending.items() if future.done()]
        self._late |= begun.keys() - set(done)
        return {each: self._pending.pop(each).result() for each in done}

    def _begin(self, each: Key) -> Future[Answer]:
        future = self._pending[each] = Future()

        def work() -> None:
            try:
                future.set_result(self._ask(each))
            except BaseException as error:  # It is raised where the answers are awaited.
                future.set_exception(error)

        threading.Thread(target=work, name="raylay-ask", daemon=True).start()
        return future
