"""Hosts as network namespaces: links lose what they are told to, and nothing is left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import hosts as hosts_file

from tests.support.waiting import until

TOOLS = Path(__file__).parents[2] / "tools"
MEGABYTE = 1 << 20


def echo(listening):
    """Answers every connection with what it sends, until the listening socket is closed."""

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            while content := connection.recv(MEGABYTE):
                connection.sendall(content)

    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


@pytest.fixture
def connected(hosts):
    """`connected(client, ...)`: the hosts, and a connection from each to a server that echoes."""
    with contextlib.ExitStack() as stack:

        def connect(*clients):
            made = hosts("server", *clients)
            with made["server"].entered():
                server = stack.enter_context(socket.create_server((made["server"].address, 7)))
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=echo, args=(server,), daemon=True).start()
            connections = []
            for client in clients:
                with made[client.partition("@")[0]].entered():
                    address = made["server"].address, 7
                    connections.append(socket.create_connection(address, timeout=5))
                stack.enter_context(connections[-1])
            return made, *connections

        yield connect


def asked(connection, seconds=5.0):
    """Whether an answer comes."""
    connection.settimeout(seconds)
    connection.sendall(b"?")
    with contextlib.suppress(TimeoutError):
        return connection.recv(1) == b"?"
    return False


@pytest.mark.parametrize("lost", ["all", "up", "down"])
def test_a_link_that_loses_packets_tells_nobody_and_delivers_once_it_is_whole(connected, lost):
    hosts, ana, bo = connected("ana", "bo")
    link = hosts["ana"].link
    assert asked(ana)
    assert link.lost_packets == 0
    link.swallow() if lost == "all" else link.one_way("down" if lost == "up" else "up")
    assert not asked(ana, seconds=0.3)
    assert asked(bo), "the other link is whole"
    lost_packets = link.lost_packets
    assert lost_packets > 0
    link.restore()
    ana.settimeout(5.0)
    assert ana.recv(1) == b"?", "the connection has outlived it"
    assert link.lost_packets >= lost_packets, "what was lost is not forgotten"


def test_of_a_cut_link_others_are_told(connected):
    hosts, ana = connected("ana")
    hosts["ana"].link.cut()
    with hosts["server"].entered(), pytest.raises(OSError, match="unreachable"):
        socket.create_connection((hosts["ana"].address, 7), timeout=5.0)
    assert not asked(ana, seconds=0.3)
    hosts["ana"].link.restore()
    ana.settimeout(5.0)
    assert ana.recv(1) == b"?"


def test_a_rate_is_kept_in_both_directions_until_the_link_is_restored(connected):
    hosts, ana = connected("ana")
    sent = bytes(MEGABYTE // 2)

    def seconds():
        began, left = time.monotonic(), len(sent)
        threading.Thread(target=ana.sendall, args=(sent,), daemon=True).start()
        while left:
            left -= len(ana.recv(left))
        return time.monotonic() - began

    hosts["ana"].link.rate(80.0, up_megabits=8.0)
    assert seconds() > 0.4  # half a second at 1 MB/s, but for a full bucket
    hosts["ana"].link.rate(8.0, up_megabits=80.0)
    assert seconds() > 0.4
    hosts["ana"].link.restore()
    shown = hosts["ana"].run(["tc", "qdisc", "show"], capture_output=True, text=True, check=True)
    assert "tbf" not in shown.stdout


@pytest.mark.parametrize("name", ["bo@home", "bo@home@carrier"])
def test_a_host_behind_a_nat_reaches_others_and_is_not_reached(hosts, name):
    made = hosts("server", name)
    with made["server"].entered():
        server = socket.create_server((made["server"].address, 7))
    with server, made["bo"].entered(), socket.create_connection(server.getsockname(), timeout=5):
        connection, (seen, _) = server.accept()
        connection.close()
    assert seen == made["bo"].public != made["bo"].address
    with made["bo"].entered(), socket.create_server(("0.0.0.0", 8)), made["server"].entered():
        for address in (made["bo"].address, made["bo"].public):
            with pytest.raises(TimeoutError):  # dropped in silence
                socket.create_connection((address, 8), timeout=0.3)


def test_homes_have_the_same_addresses_and_those_of_one_reach_each_other(hosts):
    made = hosts("ana@one", "bo@one", "cy@two")
    assert made["ana"].address == made["cy"].address
    assert made["ana"].public != made["cy"].public
    with made["ana"].entered(), socket.create_server((made["ana"].address, 7)) as server:
        with made["bo"].entered():
            socket.create_connection((made["ana"].address, 7), timeout=5).close()
        server.accept()[0].close()
        with made["cy"].entered(), pytest.raises(ConnectionRefusedError):
            socket.create_connection((made["ana"].address, 7), timeout=5)  # its own machine


def test_a_firewall_lets_out_connections_to_one_port_alone(hosts):
    made = hosts("server", "ana@office")
    made["ana"].link.only_to(7)
    with contextlib.ExitStack() as stack:
        with made["server"].entered():
            for port in (7, 8):
                stack.enter_context(socket.create_server((made["server"].address, port)))
        with made["ana"].entered():
            socket.create_connection((made["server"].address, 7), timeout=5).close()
            with pytest.raises(TimeoutError):
                socket.create_connection((made["server"].address, 8), timeout=0.3)
    assert made["ana"].link.lost_packets > 0


def namespaces():
    """The network namespaces of all processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(process))
    return found


def test_nothing_is_left_of_the_hosts_of_a_process_that_is_killed(hosts):
    """Not a namespace, and no process in one."""
    hosts("one")  # so that they can be made here
    code = (
        "import os\n"
        "from support.hosts import Hosts\n"
        "with Hosts('a', 'b@home') as hosts:\n"
        "    process = hosts['a'].popen(['sleep', '600'])\n"
        "    while open(f'/proc/{process.pid}/comm').read() != 'sleep\\n': pass\n"
        "    made = [os.readlink(each.file) for each in hosts._namespaces]\n"
        "    print(process.pid, *made, flush=True)\n"
        "    input()\n"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(TOOLS)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    inside, *made = maker.stdout.readline().split()
    assert len(made) == 4, "two routers and two hosts"
    assert set(made) <= namespaces()
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    until(lambda: not namespaces() & set(made) and not Path(f"/proc/{inside}").exists())


def test_a_machine_that_can_have_no_hosts_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(hosts_file.shutil, "which", lambda name: None)
    said = hosts_file.why_not.__wrapped__()
    assert said.startswith("there are no hosts here: there is no ip, tc, iptables")
    assert said.endswith("They need root, iproute2 and iptables.")
