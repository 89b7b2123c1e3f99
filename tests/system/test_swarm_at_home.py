"""Volunteers behind routers, on hosts with NAT: without any option they find out whether they are
reached, steps close, and the steps are those of one machine.
"""

import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from tests.support.swarm_homes import PORT, SwarmAtHome, assert_is_of_one_machine

AT_HOME = ("ana@one", "bo@one", "cy@two")


@pytest.fixture
def at_home(hosts, tmp_path, command_cache):
    """`at_home(listen, *more)`: a swarm with machines in two houses and `more` hosts."""
    swarms = []

    def make(listen, *more):
        swarm = SwarmAtHome(tmp_path, hosts("back", *AT_HOME, *more), command_cache, listen)
        swarms.append(swarm)
        swarm.start_backbone(save_seconds=1)
        return swarm

    yield make
    for swarm in swarms:
        swarm.end()


def kinds(swarm):
    """name -> what the leader takes it for."""
    peers = swarm.status()["peers"]
    return {who.partition("/")[0]: one["kind"].partition(",")[0] for who, one in peers.items()}


def adds_up(swarm):
    """name -> its part of the last step's gradient."""
    return {who.partition("/")[0]: part for who, part in swarm.status()["adds_up"].items()}


@pytest.mark.slow
def test_volunteers_behind_routers_are_clients_by_evidence_and_who_is_reached_adds_up(at_home):
    """ana and bo are in one house, cy in another that has the same addresses, dan in none; eve's
    firewall lets out to the backbone alone, so that her parts for dan are passed on.
    """
    swarm = at_home("{}:{}", "dan", "eve@office")
    eves = swarm.hosts["eve"].link
    eves.only_to(PORT)
    assert swarm.hosts["ana"].address == swarm.hosts["cy"].address
    for name in ("ana", "bo", "cy", "eve"):
        swarm.join(name)
    clients = {"ana", "bo", "cy", "eve"}
    swarm.wait_for_steps_with(clients, 2)
    swarm.wait_for(lambda: kinds(swarm) == dict.fromkeys(clients, "a client"))
    swarm.wait_for(lambda: adds_up(swarm) == {"backbone-0": 1.0})
    before = eves.lost_packets
    swarm.join("dan")
    swarm.wait_for_steps_with({*clients, "dan"}, 2)
    swarm.wait_for(lambda: kinds(swarm).get("dan") == "computes")
    swarm.wait_for(lambda: set(adds_up(swarm)) == {"backbone-0", "dan"})
    swarm.wait_for(lambda: eves.lost_packets > before)
    swarm.wait_for_steps_with({"eve"}, 1)
    assert set(kinds(swarm)) == {*clients, "dan"}
    assert "refused" not in swarm.said("back"), "each is blamed for nothing"
    assert_is_of_one_machine(swarm)


@pytest.mark.slow
def test_a_group_goes_on_when_all_backbones_are_at_other_addresses(at_home):
    """ana, behind a router, has the address of the first backbone only, and is never dialled. dan,
    whom the new backbones reach, tells her.
    """
    swarm = at_home("{}:{}", "spare", "dan", "new", "other")
    swarm.start_backbone("spare", save_seconds=1)
    for name in ("ana", "dan"):
        swarm.join(name)
    swarm.wait_for_steps_with({"ana", "dan"}, 3)
    swarm.kill("back", "spare")
    taken = len(swarm.steps())
    for name in ("new", "other"):
        swarm.start_backbone(name, save_seconds=1)
    swarm.wait_for_steps_with({"ana", "dan"}, 3)
    assert len(swarm.steps()) > taken
    assert_is_of_one_machine(swarm)
