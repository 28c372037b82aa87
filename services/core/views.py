"""The views of an instance: each commit's changes of records change the views over them.

It folds behind the SOW topics and before subscribers are told. The changes of a view are appended
to the commit's, so that views over views, followers, deltas and out-of-focus notices work as on any
SOW topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raylay.services.core.feature import CommitBatch
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.views.building import TopicBuild
from raylay.services.views.view import View


class ViewFeature:
    """See the file's docstring.

    Owner: the instance's loop; before the instance serves, the code that recovers it. Lifecycle:
    one life of the instance.

    Args:
        views: the views, each behind those that it is over.
    """

    name = "views"
    may_be_ahead = False

    def __init__(self, views: Sequence[View]) -> None:
        self.views = tuple(views)
        self._wake: Callable[[], None] = lambda: None
        self._is_followed: Callable[[SowTopic], bool] = lambda topic: True
        self._inline = tuple(each for each in self.views if each.definition.inline)
        self._over: dict[int, list[tuple[View, int]]] = {}
        for view in self.views:
            for number, topic in enumerate(view.under):
                self._over.setdefault(id(topic), []).append((view, number))

    def follow_by(self, is_followed: Callable[[SowTopic], bool]) -> None:
        """Makes records and changes of views only where somebody needs them. Until then they are
        always made.

        Args:
            is_followed: returns whether somebody but other views needs the changes of a view.
        """
        self._is_followed = is_followed

    def wait_by(self, wake: Callable[[], None]) -> None:
        """Lets changes of many joined rows be folded in turns, by `go_on`.

        Args:
            wake: called when there is such a change.
        """
        self._wake = wake
        for view in self.views:
            view.is_patient = True

    @property
    def behind(self) -> list[View]:
        """Returns the views that fold a change in turns."""
        return [view for view in self.views if view.is_behind]

    def build(self) -> None:
        """Computes all views at once from the present records."""
        build = TopicBuild(self.views)
        while not build.is_done:
            build.take(lambda: False)
        for view in self.views:
            self.began(view)

    def began(self, view: View) -> list[SowChange]:
        """Notes that a view is built. Returns the changes that its followers have missed."""
        self._close_over()
        return view.began()

    def fold(self, batch: CommitBatch) -> None:
        """Folds a commit's changes, and appends those of the views."""
        changes = batch.changes
        if not changes:
            return
        for view in self.views:
            topic = view.topic
            if view.is_behind:
                # What is kept of the groups was decided when the change began.
                view.is_missed |= not view.is_followed and self._is_followed(topic)
                continue
            is_followed = self._is_followed(topic)
            view.is_missed = is_followed and not topic.is_built
            view.is_followed = topic.is_built and (is_followed or id(topic) in self._over)
        at = 0
        over = self._over
        while True:
            while at < len(changes):
                change = changes[at]
                if (folds := over.get(id(change.topic))) is not None:
                    self._take(change, folds, batch)
                at += 1
            if not any(self._flushed(view, changes) for view in self._inline):
                break
        if self.behind:
            self._wake()

    def _take(
        self, change: SowChange, folds: Sequence[tuple[View, int]], batch: CommitBatch
    ) -> None:
        key, previous, current, _ = change.change
        told = current or previous
        assert told is not None, "a change has a record before or after it"
        for view, number in folds:
            # The record of a delete names the transaction that brought the record, not the delete.
            view.take(number, current, key, batch.last_txid, told.updated_us)
            if view.topic.refusal:
                self._close_over()
            if not view.definition.inline:
                batch.changes += view.flush()

    def _close_over(self) -> None:
        """Takes the views out of service that are over a view out of service."""
        for view in self.views:
            refusal = next((each.refusal for each in view.under if each.refusal), "")
            if refusal and not view.topic.refusal:
                view.close(f"view {view.definition.name} is over another one: {refusal}")

    def _flushed(self, view: View, changes: list[SowChange]) -> bool:
        """Gives the changes that an inline view has gathered. Returns whether there were any: the
        views over it have to fold them before they give their own."""
        found = view.flush()
        changes += found
        return bool(found)

    def failed(self, committed_txid: int) -> None:
        """Does nothing: staged runs are not folded."""

    def status(self) -> dict[str, dict[str, int]]:
        """Returns the status of each view, for the instance's status."""
        return {view.definition.stored_as: view.status() for view in self.views}
