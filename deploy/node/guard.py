"""Certificates and credentials of a cluster of `ray up`, made where they are missing:

    guard.py head [ADDRESS]            on the head: the CA, users, passwords, its own certificate
    guard.py worker HEAD [ADDRESS]     on another host: its own certificate, signed by the head
    guard.py sign                      on the head, by ssh from another host: signs a request
    guard.py spread                    on the head: brings what changed to the other hosts

In ~/raylay:

    authority/      on the head alone: the CA and its key
    credentials/    made on the head and copied to every host: ca.pem, hashes of passwords,
                    permissions, the passwords of the operator and of links, and the key by which
                    hosts may ask the head for a certificate, and do nothing else there
    host/           on each host its own: host.crt, host.key

What is there is kept. A host's certificate, good for a year, is made anew where less than 120 days
of it are left, where its CA is another one, and where the host has another address. Private keys of
hosts leave them never; secrets are in files that only their user can read, never in arguments.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from raylay.services.errors import RaylayError
from raylay.services.fabric.files import write_private_text
from raylay.services.messages.plain_text import plain
from raylay.services.net import tls_hosts
from raylay.services.net.tls_authority import FILE_MODE, CertificateAuthority, write_private
from raylay.services.plugins.authentication import hasher

HOME = Path.home()
BASE = HOME / "raylay"
AUTHORITY = BASE / "authority"
CREDENTIALS = BASE / "credentials"
CA = CREDENTIALS / "ca.pem"
CERTIFICATE, KEY = BASE / "host" / "host.crt", BASE / "host" / "host.key"
ENROLMENT_KEY, KNOWN_HOSTS = CREDENTIALS / "enrolment-key", CREDENTIALS / "known-hosts"
WORKER_HOSTS = BASE / "worker-hosts"
"""The keys of the hosts to which the head copies credentials, each from its first contact."""
HEAD_ALIAS = "raylay-head"
MARK = "raylay-enrolment"
"""The comment of the key in ~/.ssh/authorized_keys, by which its line is found again."""
BEGIN = b"-----BEGIN CERTIFICATE-----"
PASSWORD_BYTES = 32
ATTEMPTS = 5
PAUSE_S = 2
CONNECT_S = 10
OPERATOR, LINKS = "operator", "links"
PERMISSIONS = f"""\
# Who may do what (docs/security.md). Edit this on the head, then: bash ~/raylay/deploy/start.sh
{OPERATOR}:
  logon: true
  topic: [{{topic: ".*", read: true, write: true}}]
{LINKS}:   # what instances say to one another
  replication-logon: true
  replicated-topics: [{{topic: ".*", write: true}}]
"""
ENVIRONMENT = f"""\
# . ~/raylay/credentials/{OPERATOR}.env
export RAYLAY_USER={OPERATOR}
export RAYLAY_PASSWORD_FILE=~/raylay/credentials/{OPERATOR}-password
"""


# -- on the head -----------------------------------------------------------------------------------
def head(address: str = "") -> None:
    """Makes what is missing."""
    for folder in (AUTHORITY, CREDENTIALS):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    authority = CertificateAuthority(AUTHORITY)
    _keep(CA, (AUTHORITY / "ca.pem").read_bytes())
    _user(OPERATOR, CREDENTIALS / f"{OPERATOR}-password", CREDENTIALS / "passwords")
    _user(LINKS, CREDENTIALS / f"{LINKS}-password", CREDENTIALS / "link-passwords")
    for name, text in (("permissions.yaml", PERMISSIONS), (f"{OPERATOR}.env", ENVIRONMENT)):
        if not (CREDENTIALS / name).exists():
            write_private_text(CREDENTIALS / name, text)
    # One: of the others some, of bridges say, are addresses of other hosts as well.
    own = own_addresses(address)[0]
    why = tls_hosts.problem(CERTIFICATE, KEY, CA, [own])
    if why:
        key, request = tls_hosts.request(socket.gethostname())
        _take(key, authority.sign(request, [socket.gethostname(), own]), why)
    _let_hosts_ask(own)


def _user(user: str, secret: Path, hashes: Path) -> None:
    password = secret.read_text("utf-8").strip() if secret.exists() else ""
    if password and hashes.exists():
        return  # also where somebody gave him another password, or took him out
    is_new, password = not password, password or secrets.token_urlsafe(PASSWORD_BYTES)
    kept = hashes.read_text("utf-8").splitlines() if hashes.exists() else []
    others = [line for line in kept if line.partition(":")[0].strip() != user]
    made = hasher().hash(password)
    write_private_text(hashes, "".join(f"{line}\n" for line in [*others, f"{user}:{made}"]))
    # Last: who is interrupted before it makes another one the next time, and no former password
    # stays good beside a new one that is not.
    if is_new:
        write_private_text(secret, password + "\n")


def _let_hosts_ask(address: str) -> None:
    """Hosts reach this one by ssh, with a key that is good for `guard.py sign` alone. They know it
    by its host keys, as it shows them now."""
    if not ENROLMENT_KEY.exists():
        aside = ENROLMENT_KEY.with_name(f".{ENROLMENT_KEY.name}.{os.getpid()}")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", MARK, "-f", str(aside))
        aside.with_name(f"{aside.name}.pub").unlink()
        aside.replace(ENROLMENT_KEY)
    public = _run("ssh-keygen", "-y", "-f", str(ENROLMENT_KEY)).split()[:2]
    sign = "~/raylay/venv/bin/python ~/raylay/deploy/guard.py sign"
    line = " ".join((f'restrict,command="{sign}"', *public, MARK)).encode()
    allowed = HOME / ".ssh" / "authorized_keys"
    # Bytes: others' comments may be of any encoding.
    before = allowed.read_bytes().splitlines() if allowed.exists() else []
    after = [*(each for each in before if each.split()[-1:] != [MARK.encode()]), line]
    if after != before:
        allowed.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(allowed, b"\n".join(after) + b"\n")
    shown = _run("ssh-keyscan", "-T", str(CONNECT_S), address).splitlines()
    known = sorted(f"{HEAD_ALIAS} {each.partition(' ')[2]}" for each in shown if each[:1] != "#")
    if known:
        _keep(KNOWN_HOSTS, ("\n".join(known) + "\n").encode())


def sign() -> None:
    """Signs the request that comes in, for the address that it comes from."""
    peer = os.environ["SSH_CONNECTION"].split()[0]
    request = sys.stdin.buffer.read(1 << 20)
    names = tls_hosts.names_for(peer, tls_hosts.requested_name(request), looked_up)
    sys.stdout.buffer.write(CertificateAuthority(AUTHORITY).sign(request, names))


def looked_up(name: str) -> set[str]:
    """The addresses of a name, as this host knows it."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        return set()


def spread() -> None:
    """Brings the credentials to the hosts that live, and has them look at their certificates. What
    a host that is away lacks it gets from Ray's launcher when it comes back, or the next time."""
    import node
    import yaml

    described = HOME / "ray_bootstrap_config.yaml"
    if not described.exists():
        return
    user = yaml.safe_load(described.read_text("utf-8"))["auth"]["ssh_user"]
    ssh = ["ssh", "-i", str(HOME / "ray_bootstrap_key.pem"), "-o", "BatchMode=yes"]
    # A host's key is taken down at the first contact: secrets go to no other host afterwards.
    ssh += ["-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={WORKER_HOSTS}"]
    ssh += ["-o", "HashKnownHosts=no", "-o", "LogLevel=ERROR", "-o", f"ConnectTimeout={CONNECT_S}"]
    running = []
    for address in node.others(node.connected()):
        to = f"{user}@{address}"
        there = f"{to}:raylay/credentials/"
        copy = ["rsync", "-a", "-e", shlex.join(ssh), f"{CREDENTIALS}/", there]
        look = [*ssh, to, "bash ~/raylay/deploy/start.sh"]
        command = ["sh", "-c", f"{shlex.join(copy)} && {shlex.join(look)} >/dev/null"]
        running.append((address, subprocess.Popen(command, stdin=subprocess.DEVNULL)))
    for address, process in running:
        if process.wait():
            _tell(
                f"{address} did not get what is new of ~/raylay/credentials; if that host was made "
                f"anew and has another key: ssh-keygen -R {address} -f {WORKER_HOSTS}"
            )


# -- on another host -------------------------------------------------------------------------------
def worker(head_address: str, address: str = "") -> None:
    """Gets this host its certificate, where it has none that can be relied on."""
    if not CA.exists():
        raise Refused(f"there is no {CA}: the head makes it, and its launcher copies it")
    why = tls_hosts.problem(CERTIFICATE, KEY, CA, own_addresses(address))
    if not why:
        return
    key, request = tls_hosts.request(socket.gethostname())
    for attempt in range(1, ATTEMPTS + 1):
        done = subprocess.run(
            _ask(head_address, address), input=request, capture_output=True, check=False
        )
        found = done.stdout.find(BEGIN)
        if done.returncode == 0 and found >= 0:
            _take(key, done.stdout[found:], why)
            return
        if attempt < ATTEMPTS:
            time.sleep(PAUSE_S)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    raise Refused(
        f"{why}, and the head signed none: {said[-1] if said else 'it said nothing'}; hosts ask "
        f"{head_address} by ssh, port 22; to try again: bash ~/raylay/deploy/start.sh"
    )


def _ask(head_address: str, address: str) -> list[str]:
    """The command. It comes from the address that the certificate is to be good for."""
    options = {
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "HostKeyAlias": HEAD_ALIAS,
        "UserKnownHostsFile": str(KNOWN_HOSTS),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": str(CONNECT_S),
        "LogLevel": "ERROR",
        **({"BindAddress": address} if address else {}),
    }
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    return [
        *("ssh", "-F", "/dev/null", "-i", str(ENROLMENT_KEY), *given),
        f"{getpass.getuser()}@{head_address}",
    ]


# -- both ------------------------------------------------------------------------------------------
class Refused(RaylayError):
    """Told in a line."""


def own_addresses(address: str = "") -> list[str]:
    """Those of this host; the given one alone, where instances listen on that."""
    return [address] if address else _run("hostname", "-I").split()


def _take(key: bytes, certificate: bytes, why: str) -> None:
    KEY.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(KEY, key)
    write_private(CERTIFICATE, certificate, FILE_MODE)
    _tell(f"{socket.gethostname()} has a new certificate: {why}")


def _keep(path: Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        write_private(path, data)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise Refused(f"{command[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def _tell(text: str) -> None:
    # What another host said may be in it.
    print(plain(f"raylay: {text}"), file=sys.stderr)


def main(arguments: list[str]) -> int:
    """The exit status."""
    verbs: dict[str, Any] = {"head": head, "worker": worker, "sign": sign, "spread": spread}
    try:
        verbs[arguments[0]](*arguments[1:])
    except (RaylayError, OSError) as error:
        _tell(str(error))
        return 1
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
