"""The ledger of a step under any sequence of events: no row twice, none lost."""

from hypothesis import given
from hypothesis import strategies as st

from dipaco.swarm.planning.leases import BlockLedger, blocks_to_lease

PEERS = st.sampled_from(["ana", "bo", "cy"])
EVENTS = st.one_of(
    st.tuples(st.just("lease"), PEERS, st.integers(1, 4)),
    st.tuples(st.just("backup"), PEERS, st.integers(0, 8)),
    st.tuples(st.just("finish"), PEERS, st.integers(-1, 9)),
    st.tuples(st.just("adopt"), PEERS, st.integers(-1, 9)),
    st.tuples(st.just("drop"), PEERS, st.just(0)),
    st.tuples(st.just("give_back"), PEERS, st.just(0)),
    st.tuples(st.just("expire"), PEERS, st.integers(0, 50)),
)


@given(st.lists(EVENTS, max_size=60))
def test_every_block_is_in_exactly_one_place_whatever_happens(events):
    ledger, sums = BlockLedger(7, 9), {"ana": set(), "bo": set(), "cy": set()}
    for clock, (event, peer, number) in enumerate(events):
        if event == "lease":
            ledger.lease(peer, number, clock + 10.0)
        elif event == "backup":
            ledger.lease_backup(peer, number, clock + 10.0)
        elif event == "finish" and ledger.finish(peer, number):
            sums[peer].add(number)  # what a peer adds to its sum
        elif event == "adopt" and ledger.adopt(peer, [number, *sums[peer]]):
            sums[peer].add(number)
        elif event == "drop":
            ledger.drop(peer)
            sums[peer].clear()  # its sum is gone
        elif event == "give_back":
            ledger.give_back(peer)
        elif event == "expire":
            ledger.expire(float(number))
        assert ledger.blocks_by_peer == {p: tuple(sorted(s)) for p, s in sums.items() if s}
        held = sum(len(ledger.held_by(p)) for p in sums)
        assert ledger.num_free + held + ledger.num_done == 9
    summed = [block for blocks in sums.values() for block in blocks]
    assert len(summed) == len(set(summed)) == ledger.num_done


def test_a_late_block_does_not_count_for_the_peer_that_lost_it():
    ledger = BlockLedger(0, 1)
    ledger.lease("ana", 1, until_seconds=5.0)
    assert ledger.expire(5.1) == {"ana": (0,)}
    ledger.lease("bo", 1, until_seconds=20.0)
    assert not ledger.finish("ana", 0)
    assert ledger.finish("bo", 0)
    assert ledger.is_complete


def test_of_a_block_and_its_backup_the_first_counts_and_neither_peers_end_frees_it():
    ledger = BlockLedger(0, 3)
    ledger.lease("ana", 3, until_seconds=5.0)
    for block in range(3):
        assert ledger.lease_backup("bo", block, until_seconds=9.0)
        assert not ledger.lease_backup("cy", block, until_seconds=9.0)
    assert ledger.finish("bo", 0)
    assert not ledger.finish("ana", 0)
    assert ledger.finish("ana", 1)
    assert not ledger.finish("bo", 1)
    assert ledger.expire(5.1) == {"ana": (2,)}
    assert ledger.num_free == 0
    assert ledger.finish("bo", 2)
    assert not ledger.finish("ana", 2)
    assert ledger.blocks_by_peer == {"ana": (1,), "bo": (0, 2)}


def test_the_blocks_of_a_peer_that_dies_are_free_again():
    ledger = BlockLedger(0, 3)
    ledger.lease("ana", 2, 9.0)
    ledger.finish("ana", 0)
    assert ledger.drop("ana") == (0, 1)
    assert ledger.num_free == 3


def test_leases_shrink_towards_the_end_and_fast_peers_get_more():
    assert blocks_to_lease(100, 1 / 3, [1.0], max_seconds=60.0) == 37
    assert blocks_to_lease(100, 1.0, [1 / 3], max_seconds=60.0) == 12
    assert blocks_to_lease(3, 1.0, [1 / 3], max_seconds=60.0) == 1
    assert blocks_to_lease(100, 1 / 3, [1.0], max_seconds=2.0) == 6
    assert blocks_to_lease(0, 1.0, [], max_seconds=60.0) == 0


def test_a_sum_is_adopted_whole_or_not_at_all():
    ledger = BlockLedger(0, 6)
    assert ledger.adopt("ana", [0, 2])
    assert ledger.adopt("ana", [2, 0])  # the answer was lost
    assert not ledger.adopt("bo", [1, 2])
    assert ledger.lease("cy", 1, 10.0) == (1,)
    assert not ledger.adopt("cy", [1])  # it computes that one again: it would be in its sum twice
    assert ledger.adopt("bo", [3, 4])
    assert ledger.blocks_by_peer == {"ana": (0, 2), "bo": (3, 4)}
    assert ledger.drop("ana") == (0, 2)
    assert not ledger.adopt("bo", [5, 6])
