"""The wide area between the regions of a playground: a router in user space that is late and loses.

`deploy/playground` starts it where the kernel has no netem. Each host has a TUN device `wan0`, to
which its routes send what goes to other regions; this process holds the other end of all of them,
keeps each packet for the delay of its pair of regions, or drops it, and hands it on. Packets of one
pair stay in order, as on one path.

    python3 playground_relay.py CONTROL_SOCKET

Control: one JSON object a line on that Unix socket, one back: `attach`, `detach`, `rule`, `counts`,
`stop`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

PACKET_BYTES_MAX = 65_536
READS_AT_ONCE = 64
"""Of one device before the others have their turn."""
TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_INFO = 0x0001 | 0x1000
CLONE_NEWNET = 0x40000000
DEVICE = "wan0"
IDLE_S = 1.0


class Rule(NamedTuple):
    """What a packet meets on the way from one region to another."""

    delay_s: float = 0.0
    loss: float = 0.0
    """Share of the packets that are lost, from 0 to 1."""


class Wires:
    """Which packet goes where, and when. Time and chance come in as arguments.

    Invariant: of one pair of regions packets leave in the order in which they came.
    """

    def __init__(self, queue_packets_max: int = 20_000) -> None:
        self._region: dict[bytes, str] = {}
        self._rules: dict[tuple[str, str], Rule] = {}
        self._waiting: dict[tuple[str, str], deque[tuple[float, bytes, bytes]]] = {}
        self._queue_packets_max = queue_packets_max
        self.passed = self.lost = self.overflowed = self.unknown = 0

    def attach(self, address: bytes, region: str) -> None:
        """From now on packets to this IPv4 address are for that region."""
        self._region[address] = region

    def detach(self, address: bytes) -> None:
        """Its packets, those on their way too, go nowhere."""
        self._region.pop(address, None)

    def set_rule(self, source: str, target: str, rule: Rule) -> None:
        """What packets from one region to another meet from now on."""
        self._rules[source, target] = rule

    def take(self, packet: bytes, now_s: float, chance: float) -> None:
        """A packet came from a host.

        Args:
            chance: from 0 to 1, drawn for this packet.
        """
        source = self._region.get(packet[12:16])
        address = packet[16:20]
        target = self._region.get(address)
        if packet[0] >> 4 != 4 or source is None or target is None:
            self.unknown += 1
            return
        rule = self._rules.get((source, target), Rule())
        if chance < rule.loss:
            self.lost += 1
            return
        waiting = self._waiting.setdefault((source, target), deque())
        if len(waiting) >= self._queue_packets_max:
            self.overflowed += 1
            return
        due_s = now_s + rule.delay_s
        if waiting and waiting[-1][0] > due_s:
            due_s = waiting[-1][0]  # the rule became faster: nobody overtakes
        waiting.append((due_s, address, packet))

    def due(self, now_s: float) -> Iterator[tuple[bytes, bytes]]:
        """(address, packet) of what has waited long enough, out of the queues."""
        for waiting in self._waiting.values():
            while waiting and waiting[0][0] <= now_s:
                _, address, packet = waiting.popleft()
                if address in self._region:
                    self.passed += 1
                    yield address, packet
                else:
                    self.unknown += 1

    def next_due_s(self) -> float | None:
        """When the next packet is due; None: none waits."""
        return min((waiting[0][0] for waiting in self._waiting.values() if waiting), default=None)


def open_device(namespace: str) -> int:
    """The TUN device of a network namespace, by its path: made there, held here."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(file: BinaryIO) -> None:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)

    with open("/proc/thread-self/ns/net", "rb") as own, open(namespace, "rb") as other:
        enter(other)
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            wanted = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN_WITHOUT_INFO)
            try:
                fcntl.ioctl(device, TUNSETIFF, wanted)
            except OSError:
                os.close(device)
                raise
            return device
        finally:
            enter(own)


class Relay:
    """The shell: devices, the clock, the control socket."""

    def __init__(self, control: str) -> None:
        self._wires = Wires()
        self._poll = select.epoll()
        self._devices: dict[int, bytes] = {}
        self._of_address: dict[bytes, int] = {}
        self._callers: dict[int, tuple[socket.socket, bytearray]] = {}
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._control.bind(control)
        self._control.listen()
        self._control.setblocking(False)
        self._poll.register(self._control.fileno(), select.EPOLLIN)
        self._stopping = False

    def run(self) -> None:
        """Until `stop`."""
        chance = random.Random().random
        while not self._stopping:
            next_s = self._wires.next_due_s()
            wait_s = IDLE_S if next_s is None else max(0.0, next_s - time.monotonic())
            for number, _ in self._poll.poll(min(wait_s, IDLE_S)):
                if number in self._devices:
                    self._read(number, chance)
                elif number in self._callers:
                    self._hear(number)
                else:
                    caller, _ = self._control.accept()
                    self._callers[caller.fileno()] = (caller, bytearray())
                    self._poll.register(caller.fileno(), select.EPOLLIN)
            for address, packet in self._wires.due(time.monotonic()):
                try:
                    os.write(self._of_address[address], packet)
                except OSError:
                    pass  # a full or dead device loses a packet, as networks do

    def _read(self, device: int, chance: Any) -> None:
        now_s = time.monotonic()
        for _ in range(READS_AT_ONCE):
            try:
                packet = os.read(device, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                self._close(device)
                return
            self._wires.take(packet, now_s, chance())

    def _close(self, device: int) -> None:
        address = self._devices.pop(device)
        self._of_address.pop(address, None)
        self._wires.detach(address)
        self._poll.unregister(device)
        os.close(device)

    def _hear(self, number: int) -> None:
        caller, buffer = self._callers[number]
        data = caller.recv(65_536)
        buffer += data
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            try:
                answer = self._do(json.loads(line))
            except (OSError, KeyError, ValueError) as error:
                answer = {"error": str(error)}
            caller.sendall(json.dumps(answer).encode() + b"\n")
        if not data:
            self._poll.unregister(number)
            caller.close()
            del self._callers[number]

    def _do(self, asked: dict[str, Any]) -> dict[str, Any]:
        wires = self._wires
        verb = asked["verb"]
        if verb == "attach":
            address = socket.inet_aton(asked["address"])
            if address in self._of_address:
                self._close(self._of_address[address])
            device = open_device(asked["namespace"])
            self._devices[device] = address
            self._of_address[address] = device
            self._poll.register(device, select.EPOLLIN)
            wires.attach(address, asked["region"])
        elif verb == "detach":
            device = self._of_address.get(socket.inet_aton(asked["address"]), -1)
            if device >= 0:
                self._close(device)
        elif verb == "rule":
            rule = Rule(float(asked["delay_s"]), float(asked["loss"]))
            wires.set_rule(asked["from"], asked["to"], rule)
        elif verb == "stop":
            self._stopping = True
        elif verb != "counts":
            raise ValueError(f"unknown verb {verb}")
        return {
            "passed": wires.passed,
            "lost": wires.lost,
            "overflowed": wires.overflowed,
            "unknown": wires.unknown,
        }


def ask(control: Path, timeout_s: float = 10.0, **request: Any) -> dict[str, Any]:
    """Asks a running relay.

    Raises:
        OSError: it does not answer, or refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(timeout_s)
        caller.connect(str(control))
        caller.sendall(json.dumps(request).encode() + b"\n")
        line = caller.makefile("rb").readline()
    answer: dict[str, Any] = json.loads(line or b'{"error": "the relay has ended"}')
    if "error" in answer:
        raise OSError(f"relay: {answer['error']}")
    return answer


if __name__ == "__main__":
    Relay(sys.argv[1]).run()
