"""`raylay password` and `raylay entitlement`: users, and what they may do."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.options import FabricOption, HttpOption, JsonOption
from raylay.services.commands.shared.printing import echo, echo_json, echo_result
from raylay.services.errors import ConfigurationError
from raylay.storage.files import PRIVATE_FILE_MODE

PASSWORD_BYTES_MIN = 8
entitlement_app = typer.Typer(
    add_completion=False,
    help="Show what users may do, and make instances ask again.",
    pretty_exceptions_enable=False,
)


def password(
    user: Annotated[str, typer.Argument(help="The user.")],
    file: Annotated[Path, typer.Option("--file", help="The file of the module `passwords`.")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove the user.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Set the password of a user in a file of Argon2 hashes. The command asks for it, or reads it
    from the input if that is no terminal. Instances read the file at the next logon."""
    from raylay.services.fabric.files import write_private_text
    from raylay.services.plugins.authentication import hasher, read_passwords

    if not user or ":" in user or user.strip() != user or user.startswith("#"):
        raise ConfigurationError(
            f"{user!r} is not allowed as a user name: use no colon, no leading or trailing spaces, "
            "and no # at the beginning"
        )
    text = ""
    if file.exists():
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise ConfigurationError(f"{file} cannot be read: {why}") from None
    known = read_passwords(text, str(file))
    lines = [line for line in text.splitlines() if line.strip().partition(":")[0] != user]
    if remove:
        if user not in known:
            raise ConfigurationError(f"{file} does not have {user}")
    else:
        lines.append(f"{user}:{hasher().hash(_asked())}")
    mode = file.stat().st_mode & 0o777 if file.exists() else PRIVATE_FILE_MODE
    write_private_text(file, "".join(f"{line}\n" for line in lines), mode)
    done = "is taken out" if remove else "has a new password" if user in known else "is added"
    change = "removed" if remove else "changed" if user in known else "added"
    echo_result(as_json, f"{user} {done}", user=user, file=str(file), change=change)


def _asked() -> str:
    if sys.stdin.isatty():
        found = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        found = sys.stdin.readline().rstrip("\r\n")
    if len(found.encode("utf-8", "surrogatepass")) < PASSWORD_BYTES_MIN:
        raise ConfigurationError(f"the password is too short: give {PASSWORD_BYTES_MIN} or more")
    return found


@entitlement_app.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A file of the module `permissions`.")],
    user: Annotated[str, typer.Argument(help="The user.")],
    topic: Annotated[
        list[str] | None, typer.Argument(help="Topics, or paths of control calls.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a permissions file allows a user to do, on topics and with control calls, and which
    entries never apply."""
    from raylay.services.plugins.entitlement import entitlement
    from raylay.services.security.control import ROOT
    from raylay.services.security.modules import ModuleConfig
    from raylay.services.security.permissions import Grant

    module = entitlement(ModuleConfig("permissions", {"File": str(file)}), str(file))
    found = asyncio.run(module.permissions(user, "", ""))

    def words(grant: Grant) -> str:
        if not grant.allowed:
            return "nothing"
        kept = [f"what passes {grant.filter}"] if grant.filter else []
        kept += [f"the fields {grant.select}"] if grant.select else []
        return ", ".join(kept) or "everything"

    if as_json:
        topics = [name for name in topic or () if not name.startswith(ROOT)]
        calls = [name for name in topic or () if name.startswith(ROOT)]
        echo_json(
            {
                "user": user,
                "logon": found.logon,
                "replication_logon": found.replication_logon,
                "controls": {name: found.controls(name) for name in calls},
                "problems": found.dead_entries(),
                "topics": {
                    name: {
                        how: {
                            "allowed": grant.allowed,
                            "filter": grant.filter,
                            "select": grant.select,
                        }
                        for how, grant in (
                            ("read", found.read(name.encode())),
                            ("write", found.write(name.encode())),
                        )
                    }
                    for name in topics
                },
            },
            default=str,
        )
        return
    for problem in found.dead_entries():
        echo(f"raylay: warning: {user}: {problem}", err=True)
    echo(f"log on: {'yes' if found.logon else 'no'}")
    echo(f"log on as a link: {'yes' if found.replication_logon else 'no'}")
    for name in topic or ():
        if name.startswith(ROOT):
            echo(f"{name}: {'yes' if found.controls(name) else 'no'}")
            continue
        data = name.encode()
        echo(f"{name}: reads {words(found.read(data))}; writes {words(found.write(data))}")


@entitlement_app.command("reset")
def reset(
    instance: Annotated[str, typer.Argument(help="The instance whose modules are asked again.")],
    of_user: Annotated[
        str, typer.Argument(metavar="[USER]", help="Only the sessions of this user.")
    ] = "",
    fabric: FabricOption = "",
    authentication: Annotated[
        bool, typer.Option("--authentication", help="Ask again who they are, too.")
    ] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an instance ask its modules again what its users may do: their clients are disconnected,
    and connect again at once."""
    with controlled(fabric, http) as attached:
        if authentication:
            count = int(attached.control(instance, "reset_authentication", of_user=of_user))
        else:
            count = attached.reset_entitlement(instance, of_user)
    line = f"{instance}: {count} sessions log on again"
    echo_result(as_json, line, instance=instance, sessions=count)
