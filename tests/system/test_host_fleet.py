"""`tools/fleet.py` in its smallest form: every fault of a link happens once, and the run ends with
the bits of Algorithm 1.
"""

import pytest
from support.hosts import PROGRAMS
from support.sites import why_no_site


@pytest.mark.cluster
@pytest.mark.timeout(900)  # whole runs, on machines that may be busy
@pytest.mark.slow
def test_a_training_by_hosts_whose_links_fail_ends_with_the_bits_of_algorithm_1(tool):
    if (problem := why_no_site()) is not None:
        pytest.skip(problem)
    run = "--hosts 3 --experts 2 --phases 24 --steps 4 --task-seconds 2 --lease-seconds 3"
    answer, said = tool("fleet.py", *run.split(), "--silent-seconds", "6", "--fault-every", "0")
    assert not answer["never"], said
    assert answer["digest_equal"], said
    assert (answer["documents_lost"], answer["documents_twice"]) == (0, 0), said
    assert 0 < answer["goodput"] <= 1.01, said


def test_where_hosts_cannot_be_made_it_says_what_is_missing(tool, tmp_path):
    answer, said = tool("fleet.py", PATH=str(tmp_path))
    assert set(answer) == {"skipped"}
    assert "They need root, iproute2 and iptables." in said
    assert all(program in said for program in PROGRAMS)
