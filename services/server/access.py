"""The access check of a transport: its authentication module identifies the caller, its entitlement
module gives the permissions. If either fails, no client or link is admitted."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, Protocol
from weakref import WeakSet

from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.plugins.authentication import Authentication, authentication
from raylay.services.plugins.entitlement import Entitlement, entitlement
from raylay.services.plugins.filters import subscription_filter_problem
from raylay.services.plugins.watched_file import WatchedFile
from raylay.services.security.credentials import (
    ROUNDS_MAX,
    CertificateClaims,
    Challenge,
    Credentials,
    LogonAccepted,
    LogonDenied,
)
from raylay.services.security.modules import HIDDEN, ModuleConfig
from raylay.services.security.permissions import EVERYTHING, Permissions
from raylay.services.server.runtime import InstanceRuntime

AUTH = "auth"
"""Reason that a refused client or link is given. It learns no more: the details would help an
attacker to guess."""
BUSY = (
    "not_ready",
    "too many log on at once, or failed to from this address: try again a little later",
)
NOT_LET_IN = "it is not let in: user name, password or certificate do not do"
SECRET_CHARACTERS_MIN = 4
"""Length from which a password is removed from reports. A shorter one may be a part of any
sentence."""


class AccessGranted(NamedTuple):
    """The result of a logon that is granted.

    Attributes:
        user: the name by which the modules know the user; empty: no particular user.
        permissions: what the user may do; None: everything.
    """

    user: str
    permissions: Permissions | None


class ShownCertificate(Protocol):
    """A certificate that the transport has verified."""

    @property
    def common_name(self) -> str:
        """The common name of the certificate's subject."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the certificate is valid for, each behind its kind: `DNS:here-1`."""


class AccessCheck:
    """See the file's docstring. Owner: the instance's event loop; one for each transport.

    Args:
        who: the authentication module, which identifies the user; None: the claimed name is
            believed.
        what: the entitlement module, which gives the permissions; None: everything is permitted.
        where: the instance and the transport, as reports name them.
        transport: the name of the transport.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        who: Authentication | None,
        what: Entitlement | None,
        where: str,
        transport: str = "",
    ) -> None:
        self._runtime = runtime
        self._transport = transport
        files = (getattr(module, "watched", None) for module in (who, what))
        self._told = {file: "" for file in files if isinstance(file, WatchedFile)}
        """The files that the modules read, each with the problem that was last reported of it."""
        self._is_looking = False
        self._who = who
        self._what = what
        self._where = where
        self.authenticates = self.entitles = True
        """Whether the modules of authentication, and those of entitlement, are asked: an action
        may disable either kind."""
        self._checked: WeakSet[Permissions] = WeakSet()
        """Permissions whose filters have been checked. All logons of a user share the permissions
        of a file."""

    @property
    def problem(self) -> str:
        """The problems of the modules' files, as a sentence for people; empty: there is none."""
        return "; ".join(_said(file) for file in self._told if file.problem)

    def keep_looking(self) -> None:
        """Has the modules' files read again, now and then, so that a broken file is reported before
        a logon depends on it."""
        if self._told and not self._is_looking:
            self._is_looking = True
            self._runtime.spawn(self._look())

    async def _look(self) -> None:
        try:
            for file in self._told:
                with suppress(ConfigurationError):
                    await file.look()
        finally:
            self._is_looking = False
        self._tell_of_files()

    def _tell_of_files(self) -> None:
        """Reports each file whose problem has changed, once for each change."""
        for file, told in self._told.items():
            if file.problem == told:
                continue
            self._told[file] = file.problem
            where = {"transport": self._transport, "file": str(file.path)}
            if file.problem:
                self._runtime.report("security_file_failed", **where, text=_said(file))
            else:
                self._runtime.report("security_file_recovered", **where)

    async def ask(self, asked: Credentials) -> AccessGranted | Challenge | LogonDenied:
        """Decides whether a client or a link is let in. A refusal is reported without its
        secrets."""
        try:
            found = await self._asked(asked)
        except RaylayError as error:
            found = LogonDenied(str(error))
        except (Exception, SystemExit) as error:  # an installed module may raise anything
            found = LogonDenied(
                f"{self._where}: its module failed: {type(error).__name__}: {error}"
            )
        self._tell_of_files()
        if isinstance(found, Challenge) and asked.round >= ROUNDS_MAX:
            found = LogonDenied(f"it was challenged {ROUNDS_MAX} times")
        if isinstance(found, LogonDenied):
            why = found.why
            if len(asked.password) >= SECRET_CHARACTERS_MIN:
                # A module may have quoted the password in its reason.
                why = why.replace(asked.password, HIDDEN)
            self._runtime.report(
                "logon_denied",
                client=asked.client_name[:200],
                user=asked.user_id[:200],
                peer=asked.address,
                transport=asked.transport,
                text=why,
            )
        return found

    async def _asked(self, asked: Credentials) -> AccessGranted | Challenge | LogonDenied:
        user = asked.user_id
        if self._who is not None and self.authenticates:
            answer = await self._who.authenticate(asked)
            self._check_answer(answer)
            if not isinstance(answer, LogonAccepted):
                return answer
            user = answer.user
        if self._what is None or not self.entitles:
            return AccessGranted(user, None)
        found = await self._what.permissions(user, asked.client_name, asked.address)
        if asked.is_control:
            # The caller of this method compares the path: filters of topics do not matter to it.
            return AccessGranted(found.user_name or user, None if found is EVERYTHING else found)
        if not (found.replication_logon if asked.is_replication else found.logon):
            kind = "replication-logon" if asked.is_replication else "logon"
            return LogonDenied(
                f"{user or 'nobody in particular'} has no {kind} in his permissions",
                is_entitled=False,
            )
        if not (asked.is_replication or found.may_be(asked.client_name)):
            return LogonDenied(
                f"{user or 'nobody in particular'} may not use this client name", is_entitled=False
            )
        if found is EVERYTHING:
            return AccessGranted(user, None)
        self._check_filters(found, user)
        return AccessGranted(found.user_name or user, found)

    def _check_answer(self, answer: object) -> None:
        """Raises ConfigurationError where a module that was installed answers with a value that is
        no answer, which admits no one."""
        kinds = LogonAccepted | LogonDenied | Challenge
        is_right = isinstance(answer, kinds) and all(
            isinstance(value, bool if name.startswith("is_") else str)
            for name, value in answer._asdict().items()
        )
        if not is_right:
            raise ConfigurationError(
                f"{self._where}: the module answered with a {type(answer).__name__} and not with "
                "a LogonAccepted, LogonDenied or Challenge of texts: mend it"
            )

    def _check_filters(self, found: Permissions, user: str) -> None:
        if found in self._checked:
            return
        texts = {grant.filter for each in found.topics for grant in (each.read, each.write)}
        texts.discard("")
        for text in texts:
            problem = subscription_filter_problem(text)
            if problem:
                raise ConfigurationError(f"{self._where}: permissions of {user}: {problem}")
        self._checked.add(found)


def access_check_of(
    runtime: InstanceRuntime,
    who: ModuleConfig | None,
    what: ModuleConfig | None,
    transport: str,
) -> AccessCheck | None:
    """The access check of a transport; None: it has no modules, and everybody is let in.

    Raises:
        ConfigurationError: a module cannot be used.
    """
    if who is None and what is None:
        return None
    where = f"{runtime.config.name}: transport {transport}"
    return AccessCheck(
        runtime,
        None if who is None else authentication(who, f"{where}: Authentication"),
        None if what is None else entitlement(what, f"{where}: Entitlement"),
        where,
        transport,
    )


def _said(file: WatchedFile) -> str:
    return f"{file.problem}: {file.meanwhile}"


def verified(shown: ShownCertificate | None) -> CertificateClaims | None:
    """A certificate in the form that modules take; None: there is none."""
    if shown is None:
        return None
    return CertificateClaims(
        shown.common_name, tuple(name.partition(":")[2] for name in shown.names)
    )
