"""What the endurance run calls flat, and the run itself in its smallest form."""

import numpy as np
import pytest
import soak


def looks_at(**values):
    """300 looks; each of `values` is a function of the phase."""
    return [
        soak.Look(
            float(n), n / 10, {name.replace("_", " "): of(n / 10) for name, of in values.items()}
        )
        for n in range(300)
    ]


def test_what_rises_after_the_first_quarter_is_not_flat(capsys):
    noise = np.random.default_rng(0)
    looks = looks_at(
        steady_memory=lambda _: 1e8 + 1e6 * noise.standard_normal(),
        warming_memory=lambda phase: 1e8 if phase > 7 else 1e7 * phase,
        leaking_memory=lambda phase: 1e8 + 1e6 * phase,
    )
    said = soak.verdict(looks, 0.1)
    assert said["not_flat"] == ["leaking memory"]
    assert said["growth"]["leaking memory"] == pytest.approx(0.19, abs=0.02)
    assert "leaking memory" in capsys.readouterr().out


def test_a_ledger_may_grow_with_every_phase_but_not_faster_and_faster():
    steady = soak.verdict(looks_at(ledger=lambda phase: 1e6 + 1e5 * phase), 0.1)
    assert steady["not_flat"] == []
    faster = soak.verdict(looks_at(ledger=lambda phase: 1e6 + 1e4 * phase**2), 0.1)
    assert faster["not_flat"] == ["ledger"]


def test_of_a_process_that_starts_late_the_first_quarter_is_its_own():
    looks = looks_at(ledger=lambda phase: 1e6)
    late = [
        look._replace(values={"server memory": 1e8 if n > 230 else 1e7})
        for n, look in enumerate(looks)
        if n > 220
    ]
    assert soak.verdict([*looks[:220], *late], 0.1)["not_flat"] == []


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(900)  # whole runs, on machines that may be busy
def test_a_run_with_kills_in_its_smallest_form(tool):
    dials = "--alone --minutes 0.5 --workers 2 --experts 2 --task-seconds 1 --lease-seconds 3"
    dials += " --kill-every 10 --tolerance 1.0"
    answer, _ = tool("soak.py", *dials.split())
    assert answer["digest_equal"]
    assert answer["kills"] >= 1
    assert {"worker memory", "worker descriptors", "store", "ledger"} <= answer["growth"].keys()
