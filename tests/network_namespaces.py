"""Two network namespaces of Linux joined by a veth pair: two hosts, as far as the network is concerned."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

NETWORK = "10.213.77"  # seen by nothing outside the two namespaces
SECONDS = 20.0  # for each command of iproute2


def why_unavailable() -> str:
    """Return why this machine cannot have network namespaces; "" if it can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2)"
    name = f"sporelm-probe-{os.getpid()}"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.SubprocessError) as reason:
        return f"network namespaces are not allowed here ({_stderr_of(reason)})"
    _ip("netns", "del", name)
    return ""


class NetworkHost:
    """One of two namespaces, with a loopback interface and one end of the link."""

    def __init__(self, name: str, interface: str, address: str) -> None:
        self.name, self.interface, self.address = name, interface, address

    def words(self, *command: Any) -> list[str]:
        """Return a command that runs in this namespace."""
        return ["ip", "netns", "exec", self.name, *map(str, command)]

    def set_link(self, state: str) -> None:
        """Take the link "up" or "down"."""
        _ip("-n", self.name, "link", "set", self.interface, state)

    def limit_rate(self, megabits: float) -> None:
        """Let this end send no faster than a slower network would; 0: as fast as it can."""
        words = ["tc", "-n", self.name, "qdisc"]
        if not megabits:
            with suppress(subprocess.CalledProcessError):  # there was no limit
                _run([*words, "del", "dev", self.interface, "root"])
            return
        burst = max(16_000, int(megabits * 1e6 / 8 / 10_000))  # bytes at full speed, of 0.1 ms
        limit = ["rate", f"{megabits:g}mbit", "burst", str(burst), "latency", "50ms"]
        _run([*words, "replace", "dev", self.interface, "root", "tbf", *limit])


@contextmanager
def linked_hosts() -> Iterator[tuple[NetworkHost, NetworkHost]]:
    """Make two namespaces joined by a veth pair; remove them whatever happens. Processes in them must have ended."""
    stem = f"sporelm{os.getpid()}"
    hosts = [NetworkHost(f"{stem}-{end}", f"veth-{end}", f"{NETWORK}.{number}") for number, end in enumerate("ab", 1)]
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
            _ip("-n", host.name, "link", "set", "lo", "up")
        first, second = hosts
        ends = ("peer", "name", second.interface, "netns", second.name)
        _ip("link", "add", first.interface, "netns", first.name, "type", "veth", *ends)
        for host in hosts:
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", host.interface)
            host.set_link("up")
        yield first, second
    finally:
        for host in hosts:
            with suppress(subprocess.SubprocessError):  # it was not made
                _ip("netns", "del", host.name)


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=SECONDS)


def _stderr_of(reason: BaseException) -> str:
    return str(getattr(reason, "stderr", "") or reason).strip().splitlines()[0][:200]
