"""Hosts that are network namespaces of this machine, each on a link that can be cut, slowed, or
made to lose everything in one direction.

    with Hosts("server", "ana", "bo@home") as hosts:
        process = hosts["ana"].popen(["dipaco", "worker", ...])
        with hosts["bo"].entered():
            socket.create_connection((hosts["server"].address, 8080))
        hosts["ana"].link.one_way("up")

All links meet in one router. `bo@home` is behind a separate router, `home`, whose NAT hides it: it
reaches others and they do not reach it. `bo@home@carrier` is behind two, one after the other. Hosts
of one home reach each other, and every home has the same addresses: the first host of each is
192.168.1.2. As in houses, unrequested packets, and packets to a private address elsewhere, are
dropped in silence. Traffic never leaves the namespaces made here. They have no names. A process
holds each, and ends with the thread that made it, even a killed one, so that nothing is left to
sweep.

A link that swallows (`swallow`, `one_way`) drops packets in the router, in silence, as a firewall
or a dead radio does: connections stay open on both sides, half-open. `cut` takes the cable out: the
router says that the host cannot be reached. `lost_packets` proves that a link has lost something.

Needs root, iproute2 and iptables. `why_not` says which of them is missing.
"""

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Sequence
from typing import Any, Literal, Self

PROGRAMS = ("ip", "tc", "iptables", "unshare", "nsenter", "setpriv")
CLONE_NEWNET = 0x40000000
NETWORK, HOME = "10.80", "192.168"  # Addresses of hosts and routers, and of hosts behind a router.
CARRIER = "100.64"  # Addresses of routers behind a router (RFC 6598).
Direction = Literal["up", "down"]  # "up" is from the host, "down" to it.


@functools.cache
def why_not() -> str | None:
    """Reason why there can be no hosts here, as a sentence, or None."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    problem = f"there is no {', '.join(lacking)}" if lacking else None
    if problem is None:
        tried = subprocess.run(
            ["unshare", "--net", "iptables", "-S"], capture_output=True, text=True
        )
        problem = tried.stderr.strip().partition("\n")[0] if tried.returncode else None
    if problem is None:
        return None
    return f"there are no hosts here: {problem}. They need root, iproute2 and iptables."


class Hosts:
    """Hosts by name, for as long as it is entered.

    Args:
      names: the hosts. `NAME@ROUTER` is behind that router's NAT, `NAME@ROUTER@CARRIER` behind
        another router's as well.
    """

    def __init__(self, *names: str):
        self._names = names
        self._hosts: dict[str, Host] = {}
        self._namespaces: list[_Namespace] = []

    def __getitem__(self, name: str) -> "Host":
        return self._hosts[name]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _make(self) -> None:
        middle = self._router()
        middle.run(["ip", "route", "add", "blackhole", f"{HOME}.0.0/16"])
        homes: dict[str, _Home] = {}
        for number, name in enumerate(self._names, start=1):
            own, _, behind = name.partition("@")
            home = self._home(middle, homes, behind) if behind else None
            if home is None:
                at, subnet = middle, f"{NETWORK}.{number}"
            else:
                home.hosts += 1
                at, subnet = home.router, f"{HOME}.{home.hosts}"
            namespace = self._namespace()
            interface = _join(at, namespace, subnet)
            link = Link(at, namespace, interface)
            public = home.public if home is not None else f"{subnet}.2"
            self._hosts[own] = Host(own, f"{subnet}.2", public, link, namespace)

    def _home(self, middle: "_Namespace", homes: dict[str, "_Home"], name: str) -> "_Home":
        """A router by its name and the names of the routers before it. Makes a new one."""
        if name not in homes:
            _, _, behind = name.partition("@")
            carrier = self._home(middle, homes, behind) if behind else None
            if carrier is None:
                at, subnet = middle, f"{NETWORK}.{len(self._names) + len(homes) + 1}"
            else:
                carrier.routers += 1
                at, subnet = carrier.router, f"{CARRIER}.{carrier.routers}"
            router = self._router()
            interface = _join(at, router, subnet)
            router.run(["iptables", *f"-t nat -A POSTROUTING -o {interface} -j MASQUERADE".split()])
            for chain in ("INPUT", "FORWARD"):
                unasked = f"-A {chain} -i {interface} -m conntrack --ctstate NEW,INVALID -j DROP"
                router.run(["iptables", *unasked.split()])
            homes[name] = _Home(router, carrier.public if carrier is not None else f"{subnet}.2")
        return homes[name]

    def _router(self) -> "_Namespace":
        router = self._namespace()
        router.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
        return router

    def _namespace(self) -> "_Namespace":
        self._namespaces.append(_Namespace())
        return self._namespaces[-1]

    def _end(self) -> None:
        for host in self._hosts.values():
            host.kill_all()
        for namespace in self._namespaces:
            namespace.close()


@dataclasses.dataclass
class _Home:
    """A router with NAT, and how many are behind it."""

    router: "_Namespace"
    public: str  # address that those outside see
    hosts: int = 0
    routers: int = 0


class Host:
    """One of the hosts.

    Attributes:
      address: as the others reach it (behind a router: as those behind the same one do).
      public: address that the others see when it dials out, its own or its router's.
      link: between it and its router.
      network: the file of its namespace, for processes that `enter` it by themselves.
    """

    def __init__(self, name: str, address: str, public: str, link: "Link", namespace: "_Namespace"):
        self.name, self.address, self.public = name, address, public
        self.link, self._namespace = link, namespace
        self.network = namespace.file
        self._processes: list[subprocess.Popen] = []

    def run(self, command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess:
        """`subprocess.run` on this host."""
        return subprocess.run(self._namespace.command(command), **settings)

    def popen(self, command: Sequence[str], **settings: Any) -> subprocess.Popen:
        """`subprocess.Popen` on this host. The process ends with the hosts, or with the thread that
        has called this.
        """
        process = subprocess.Popen(self._namespace.command(command), **settings)
        self._processes.append(process)
        return process

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """Puts this thread on this host. Sockets and threads that are made inside stay on it.
        Nothing may be awaited inside, or other tasks would be on this host as well.
        """
        with open("/proc/thread-self/ns/net") as before:
            enter(self.network)
            try:
                yield
            finally:
                enter(f"/proc/self/fd/{before.fileno()}")

    def kill_all(self) -> None:
        """Kills what `popen` has started here."""
        for process in self._processes:
            process.kill()
            process.wait()


class Link:
    """The link between a host and its router, whole until something is done to it."""

    def __init__(self, router: "_Namespace", host: "_Namespace", interface: str):
        self._router, self._host, self._interface = router, host, interface
        self._losing: set[Direction] = set()
        self._lost_before = 0

    def cut(self) -> None:
        """Takes the cable out. Others are told that the host cannot be reached."""
        self._router.run(["ip", "link", "set", self._interface, "down"])

    def one_way(self, direction: Direction) -> None:
        """Only what goes in this direction arrives: "up" is from the host, "down" to it. The rest
        is dropped in silence.
        """
        self._lose("down" if direction == "up" else "up")

    def swallow(self) -> None:
        """Nothing arrives, and nobody is told."""
        self._lose("up", "down")

    def only_to(self, port: int) -> None:
        """A firewall lets out connections to this port alone, and drops others in silence."""
        others = f"-A FORWARD -i {self._interface} -p tcp --syn ! --dport {port} -j DROP"
        self._router.run(["iptables", "-w", *others.split()])

    def rate(self, megabits: float, up_megabits: float | None = None) -> None:
        """A slower link.

        Args:
          megabits: per second, to the host.
          up_megabits: per second, from the host. None = as many.
        """
        for namespace, rate in ((self._router, megabits), (self._host, up_megabits or megabits)):
            bucket = f"root tbf rate {rate}mbit burst 32kb latency 400ms"
            namespace.run(["tc", "qdisc", "replace", "dev", self._interface, *bucket.split()])

    def restore(self) -> None:
        """Whole again, whatever was done to it."""
        self._lose()
        self._router.run(["ip", "link", "set", self._interface, "up"])
        for namespace in (self._router, self._host):
            if " tbf " in namespace.run(["tc", "qdisc", "show", "dev", self._interface]):
                namespace.run(["tc", "qdisc", "del", "dev", self._interface, "root"])

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes to the host and from it, as its interface counts them: headers included, and what
        the host has sent into a link that swallows.
        """
        shown = self._host.run(["ip", "-s", "-j", "link", "show", "dev", self._interface])
        counted = json.loads(shown)[0]["stats64"]
        return counted["rx"]["bytes"], counted["tx"]["bytes"]

    @property
    def lost_packets(self) -> int:
        """Number of packets of this link that were dropped in silence so far."""
        return self._lost_before + self._lost_now()

    def _lose(self, *directions: Direction) -> None:
        self._lost_before += self._lost_now()
        for direction in sorted(self._losing - set(directions)):
            self._rule("-D", direction)
        for direction in sorted(set(directions) - self._losing):
            self._rule("-A", direction)
        self._losing = set(directions)

    def _rule(self, verb: str, direction: Direction) -> None:
        at = {"up": "-i", "down": "-o"}[direction]
        self._router.run(["iptables", "-w", verb, "FORWARD", at, self._interface, "-j", "DROP"])

    def _lost_now(self) -> int:
        """Packets lost by the present rules."""
        listed = self._router.run(["iptables", "-w", "-nvxL", "FORWARD"])
        rows = [line.split() for line in listed.splitlines() if "DROP" in line]
        return sum(int(row[0]) for row in rows if self._interface in row)


class _Namespace:
    """A network namespace, held by a process that ends with the thread that made it."""

    def __init__(self) -> None:
        # The process is in the namespace before it says so.
        script = 'echo "$$"; exec sleep infinity'
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", script],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout
        assert int(self._holder.stdout.readline()) == self._holder.pid
        self.file = f"/proc/{self._holder.pid}/ns/net"
        self.run(["ip", "link", "set", "lo", "up"])

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command in this namespace. It ends with the thread that starts it."""
        return ["nsenter", f"--net={self.file}", "setpriv", "--pdeathsig", "KILL", *words]

    def run(self, words: Sequence[str]) -> str:
        """The output of a command in this namespace. Raises if it fails."""
        done = subprocess.run(self.command(words), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


def _join(router: _Namespace, other: _Namespace, subnet: str) -> str:
    """Links the two, gives them addresses .1 and .2, and returns the name of both ends."""
    name = "to-" + re.sub(r"\D", "-", subnet)
    pid = other.file.split("/")[2]
    router.run(["ip", "link", "add", name, "type", "veth", "peer", "name", name, "netns", pid])
    for namespace, last in ((router, 1), (other, 2)):
        namespace.run(["ip", "address", "add", f"{subnet}.{last}/24", "dev", name])
        namespace.run(["ip", "link", "set", name, "up"])
    other.run(["ip", "route", "add", "default", "via", f"{subnet}.1"])
    return name


def enter(network: str) -> None:
    """Moves this thread into that namespace for good."""
    with open(network) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
