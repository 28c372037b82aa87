"""A pair where everything is guarded: TLS on every transport, passwords and permissions for
clients, certificates for the links between the instances."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import yaml

from raylay import Client, Fabric
from raylay.services.errors import CommandFailed, LogonRefused
from raylay.services.net.tls_authority import CertificateAuthority
from raylay.services.plugins.authentication import hasher

PASSWORDS = {"amy": "amy's long secret", "bob": "bob's long secret"}
PERMISSIONS = {
    "amy": {"logon": True, "topic": [{"topic": "orders", "read": True, "write": True}]},
    "bob": {"logon": True, "topic": [{"topic": "orders", "read": "/desk = 'fx'"}]},
}
LINKS = {
    name: {"replication-logon": True, "replicated-topics": [{"topic": ".*", "write": True}]}
    for name in ("here-1", "here-2")
}


def prepare(directory: Path) -> None:
    """Makes certificates, the file of passwords and those of permissions."""
    authority = CertificateAuthority(directory)
    for name in LINKS:
        authority.issue(name, ["127.0.0.1"], days=30)
    lines = [f"{user}:{hasher().hash(password)}\n" for user, password in PASSWORDS.items()]
    (directory / "passwords").write_text("".join(lines))
    (directory / "clients.yaml").write_text(yaml.safe_dump(PERMISSIONS))
    (directory / "links.yaml").write_text(yaml.safe_dump(LINKS))


def declare(directory: Path) -> Fabric:
    """One region of two instances."""
    tls = {
        "certificate": str(directory / "{instance}.crt"),
        "private_key": str(directory / "{instance}.key"),
        "ca_file": str(directory / "ca.pem"),
    }

    def of_file(name: str) -> dict[str, object]:
        return {"module": "permissions", "options": {"File": str(directory / name)}}

    fabric = Fabric(
        "guarded",
        topics=[{"name": "orders", "message_type": "json"}],
        tls=tls,
        authentication={"module": "passwords", "options": {"File": str(directory / "passwords")}},
        entitlement=of_file("clients.yaml"),
        replication_authentication="certificates",
        replication_entitlement=of_file("links.yaml"),
    )
    return fabric.region(
        "here", instances=2, replication_transport={"tls": {**tls, "verify_client": True}}
    )


async def use(fabric: Fabric) -> None:
    """Amy publishes, bob reads what he may, and a stranger stays outside."""

    def client(user: str, password: str) -> Client:
        return fabric.client(f"desk of {user}", user_id=user, password=password)

    async with client("amy", PASSWORDS["amy"]) as amy, client("bob", PASSWORDS["bob"]) as bob:
        some = await bob.subscribe("orders")
        for desk in ("fx", "equities", "fx"):
            await amy.publish("orders", f'{{"desk": "{desk}"}}'.encode())
        await amy.flush()
        for _ in range(2):
            print("bob reads", (await anext(some)).body.decode())
        await bob.publish("orders", b"{}")
        try:
            await bob.flush()
        except CommandFailed as refused:
            print("bob is told", refused)
    try:
        async with client("amy", "guessed"):
            pass
    except LogonRefused as refused:
        print("a stranger is told", refused)


def main() -> None:
    """Runs it all, and leaves nothing behind."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        prepare(directory)
        with declare(directory).start() as fabric:
            for instance in fabric.status()["instances"]:
                for link in instance["destinations"].values():
                    print(instance["name"], "replicates to", link["peer"])
            asyncio.run(use(fabric))


if __name__ == "__main__":
    main()
