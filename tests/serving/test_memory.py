"""Memory: rows, paths and their copies share one budget, and what does not fit is refused."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco import trees
from dipaco.errors import BadSetting
from dipaco.serving import memory
from dipaco.serving.decoding.cache_pool import CachePool
from dipaco.serving.decoding.decode import LoopLimits, make_pool
from dipaco.serving.decoding.mixing import Mixer
from dipaco.serving.memory import BUDGET, memory_budget, zero_path
from tests.support.serving_rig import CONFIG, ids, make_loop, one_by_one, request, run_until_idle

PATH = trees.num_bytes(zero_path(CONFIG))
ROW = trees.num_bytes(make_pool(CONFIG, 0))


@given(st.integers(1, 500), st.integers(1, 40), st.integers(0, 10**8), st.sampled_from([0, 10**6]))
def test_rows_paths_and_copies_together_stay_within_the_budget(rows, rows_per_path, free, stacks):
    limits = LoopLimits(rows=rows, rows_per_path=rows_per_path)
    if int(BUDGET * free) < (rows + 1 + limits.rows) * ROW + 3 * PATH + stacks:
        with pytest.raises(BadSetting, match="--rows"):
            memory_budget(CONFIG, limits, None, free, stacks)
        return
    plan = memory_budget(CONFIG, limits, None, free, stacks)
    row_bytes = (rows + 1 + limits.rows) * ROW
    assert stacks + row_bytes + PATH + sum(plan) <= BUDGET * free
    assert min(plan) >= PATH
    assert memory_budget(CONFIG, limits, plan.paths, free, stacks) == plan
    with pytest.raises(BadSetting, match=rf"--path-bytes.*at most {plan.paths:,} bytes"):
        memory_budget(CONFIG, limits, plan.paths + 1, free, stacks)


@pytest.mark.parametrize("free", [600_000, 10**7])
def test_the_number_of_rows_that_fits_is_named_and_fits(free):
    with pytest.raises(BadSetting) as refused:
        memory_budget(CONFIG, LoopLimits(rows=10**6), None, free)
    most = int(str(refused.value.values["expected"]).removeprefix("at most ").replace(",", ""))
    memory_budget(CONFIG, LoopLimits(rows=most), None, free)
    with pytest.raises(BadSetting):
        memory_budget(CONFIG, LoopLimits(rows=most + 1), None, free)


def test_rows_gathered_for_many_paths_take_no_more_than_planned_and_change_no_text():
    loop = make_loop(rows=6)  # 4 gathered rows for each path's 2
    held = []
    real = CachePool.start_block

    def watching(pool, step):
        block = real(pool, step)
        caches = [each.memory.gathered.cache for each in loop._batches.values()]
        held.append(sum(leaf.nbytes for leaf in jax.tree.leaves(caches)))
        return block

    requests = [request(range(i, i + 40), path=i % 3, max_new_tokens=20, seed=i) for i in range(6)]
    alone = one_by_one(loop, requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CachePool, "start_block", watching)
        patch.setattr(Mixer, "shape", lambda *_: None)  # each path has steps of its own
        together = [loop.submit(each) for each in requests]
        run_until_idle(loop)
    assert [ids(stream) for stream in together] == alone
    assert 0 < max(held) <= loop.limits.rows * ROW


def test_a_container_has_no_more_than_its_limit(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\ninactive_file 500000\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_bytes() == 2_500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes() > 5_000_000
