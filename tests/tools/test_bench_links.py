"""`tools/bench_links.py`: what a way is, what an exchange costs on a link; its smallest form."""

import json

import bench_links
import pytest
from support.sites import why_no_site

from dipaco.config import DATA_PARALLEL, DENSE_EQUAL_TOKENS, MODULAR
from dipaco.evaluation.tables import seconds_over_link


def config_of(way, *words):
    return bench_links.config_of(bench_links.parse(["--config", "toy", *words]), way)


def test_a_way_is_a_topology_and_settings():
    plain = config_of("2x2")
    assert (plain.outer.codec, len(plain.topology.modules), plain.baselines) == ("none", 4, ())
    coded = config_of("2x2+int8")
    assert (coded.outer.codec, coded.topology) == ("int8", plain.topology)
    more = config_of("2x2+outer.codec=bfloat16,inner.steps=7", "--set", "inner.batch_size=2")
    assert (more.outer.codec, more.inner.steps, more.inner.batch_size) == ("bfloat16", 7, 2)


def test_diloco_shares_everything_and_lock_step_is_the_baseline():
    diloco = config_of("diloco")
    owners = [m for m in diloco.topology.modules if diloco.topology.parts_of(m)]
    assert [len(diloco.topology.paths_through(module)) for module in owners] == [4]
    assert config_of("lock-step").baselines == (DATA_PARALLEL,)
    assert config_of("one-machine").baselines == (DENSE_EQUAL_TOKENS,)
    assert config_of("lock-step").plan.arm(MODULAR).has_outer_steps


@pytest.mark.parametrize(
    "words",
    [
        ["--ways", "3x3"],
        ["--ways", "lock-step+int8"],
        ["--ways", "one-machine+int8"],
        ["--phases", "1"],
        ["--mbit", "0"],
        ["--until", "4"],
    ],
)
def test_what_is_no_way_or_no_number_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        bench_links.parse(words)
    assert "error:" in capsys.readouterr().err


@pytest.mark.process
def test_an_exchange_takes_the_time_of_its_bytes_up_and_down(hosts):
    """Four hosts at once: the links are their own."""
    at = hosts(bench_links.SERVERS, *bench_links.HOSTS)
    size, megabits = 250_000, 8.0
    for name in bench_links.HOSTS:
        at[name].link.rate(megabits)
    before = at["ana"].link.carried
    seconds = bench_links.exchange(type("Site", (), {"host": lambda _, name: at[name]})(), size, 1)
    down, up = (b - a for a, b in zip(before, at["ana"].link.carried, strict=True))
    assert seconds > 0.7 * seconds_over_link(0.0, 2 * size, megabits)  # buckets are full at first
    assert size < min(down, up)
    assert max(down, up) < 1.2 * size


@pytest.mark.cluster
@pytest.mark.timeout(900)  # whole runs, on machines that may be busy
@pytest.mark.slow
def test_four_hosts_do_a_run_and_the_plan_knows_its_bytes(tool, tmp_path):
    if (problem := why_no_site()) is not None:
        pytest.skip(problem)
    kept = tmp_path / "kept.json"
    dials = (
        "--config toy --ways 2x2 one-machine --phases 2 --mbit 4 --step-seconds 1 --no-outer-steps "
    )
    dials += f"--results {kept} --set model.d_model=96 model.d_ff=144"
    answer, said = tool("bench_links.py", *dials.split())
    ways = answer["ways"]
    alone, result = ways["one-machine"], ways["2x2"]
    assert (alone["carried"], list(alone["hours"])) == (0, ["4", "8"])
    assert alone["hours"]["8"] == pytest.approx(2 * 4 * 3 / 3600, rel=1e-3)
    assert 0 < result["computing"] < 1, said
    assert list(result["perplexity"]) == ["1", "2"]
    for direction in ("down", "up"):
        assert result[direction] == pytest.approx(result[f"planned_{direction}"], rel=0.2)
    both = 2 * (result["down"] + result["up"])
    assert result["carried"] == pytest.approx(both, rel=0.3)
    assert json.loads(kept.read_text())["ways"]["2x2"] == result


def test_what_is_measured_is_kept_for_the_next_call_with_the_same_settings(tmp_path):
    file = tmp_path / "links.json"
    bench_links.Results(file, {"mbit": 20.0}).add("2x2", {"computing": 0.5})
    bench_links.Results(file, {"mbit": 20.0}).add("diloco", {"computing": 0.4})
    assert list(bench_links.Results(file, {"mbit": 20.0}).ways) == ["2x2", "diloco"]
    with pytest.raises(SystemExit, match="other settings"):
        bench_links.Results(file, {"mbit": 10.0})


def test_the_table_has_what_was_planned_beside_what_was_measured():
    result = {
        "computing": 0.52, "planned_computing": 0.55, "computing_beside_nothing_else": 0.53,
        "seconds_of_a_phase": 46.5, "planned_seconds_of_a_phase": 43.5, "down": 1_490_000,
        "planned_down": 1_770_000, "up": 3_310_000, "planned_up": 3_090_000,
        "perplexity": {"1": 9.0, "2": 6.2},
    }  # fmt: skip
    heads, _, row = bench_links.table({"2x2": result})
    assert heads.count("|") == row.count("|")
    assert row.split(" | ")[1:] == [
        "52.0% (55.0%)", "46.5 s (43.5 s)", "1.49 MB (1.77 MB)", "3.31 MB (3.09 MB)", "53.0%",
        "6.2 |",
    ]  # fmt: skip


def test_perplexity_is_drawn_against_hours_with_the_bytes_of_each_way(tmp_path):
    ways = {
        way: {
            "perplexity": {"1": 60.0 / n, "2": 40.0 / n},
            "hours": {"1": n, "2": 2.0 * n},
            "carried": (n - 1) * 1_000_000,
        }
        for n, way in enumerate(("one-machine", "2x2", "2x2+int8", "diloco", "lock-step"), start=1)
    }
    bench_links.draw(ways, 20.0, tmp_path / "links.svg")
    drawn = (tmp_path / "links.svg").read_text()
    assert "one-machine: no link" in drawn
    assert "lock-step: 4 MB a machine" in drawn
