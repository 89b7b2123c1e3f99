"""Members: one worker to a name, and backbones that live; on both databases."""

HERE = {"host": "here", "machine": "cpu", "version": "0"}


def test_of_two_workers_that_find_a_name_free_one_gets_it(ledger):
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


def test_a_worker_that_takes_over_a_name_stays_registered_and_the_dead_ones_tasks_are_ready(ledger):
    ledger.members.join("back", pid=1, **HERE)
    assert ledger.queue.claim("back") is not None
    assert ledger.queue.give_back_of_namesake("back") == 1
    assert [member.state for member in ledger.members.list()] == ["here"]
    assert ledger.queue.claim("other") is not None
    assert ledger.queue.give_back_of("back") == 0
    assert [member.state for member in ledger.members.list()] == ["lost"]


def test_backbones_that_left_or_are_of_another_boot_do_not_count(ledger):
    swarms = ledger.swarms
    for number, name in enumerate(("one", "other")):
        ledger.members.join(name, pid=number, **HERE)
        swarms.put_backbone(name, "modular", 0, f"tcp://here:{number}")
    assert swarms.backbones("modular", 0) == {"one": "tcp://here:0", "other": "tcp://here:1"}
    ledger.members.leave("one")
    assert swarms.backbones("modular", 0) == {"other": "tcp://here:1"}
    ledger._database.epoch = "the boot after that"
    assert swarms.backbones("modular", 0) == {}
