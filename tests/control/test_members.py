"""The roster: one worker to a name, and backbones that live."""

HERE = {"host": "here", "machine": "cpu", "version": "0"}


def test_of_two_that_find_a_place_free_one_gets_it(ledger):
    members = ledger.members
    assert members.join("back", pid=1, **HERE)
    assert not members.join("back", pid=2, **HERE)
    (dead,) = members.list()
    assert members.join("back", pid=3, after=dead, **HERE)
    assert not members.join("back", pid=4, after=dead, **HERE)
    assert [member.pid for member in members.list()] == [3]
    members.leave("back")
    assert members.join("back", pid=5, **HERE)
    assert [(member.pid, member.state) for member in members.list()] == [(5, "here")]


def test_a_namesake_keeps_its_place_and_loses_what_the_dead_one_held(ledger):
    ledger.members.join("back", pid=1, **HERE)
    assert ledger.queue.claim("back") is not None
    assert ledger.queue.give_back_of_namesake("back") == 1
    assert [member.state for member in ledger.members.list()] == ["here"]
    assert ledger.queue.claim("other") is not None
    assert ledger.queue.give_back_of("back") == 0
    assert [member.state for member in ledger.members.list()] == ["lost"]


def test_backbones_of_another_boot_or_that_left_are_none(ledger):
    swarms = ledger.swarms
    for number, name in enumerate(("one", "other")):
        ledger.members.join(name, pid=number, **HERE)
        swarms.put_backbone(name, "modular", 0, f"tcp://here:{number}")
    assert swarms.backbones("modular", 0) == {"one": "tcp://here:0", "other": "tcp://here:1"}
    ledger.members.leave("one")
    assert swarms.backbones("modular", 0) == {"other": "tcp://here:1"}
    ledger._database.epoch = "the boot after that"
    assert swarms.backbones("modular", 0) == {}
