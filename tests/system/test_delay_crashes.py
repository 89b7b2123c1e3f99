"""A run whose paths go ahead (`outer.delay`), killed again and again by processes of its own, ends
with the facts of one that nothing happened to.
"""

import pytest

from tests.support.tiny_run import Fault, facts
from tests.system.test_crashes import CTRL_C, killed_at_each

DELAYED = ("--set", "outer.delay=1", "--set", "phases=3")
# The toy takes three steps in a phase; from its second phase on, the first of them is taken ahead.
FAULTS = [
    Fault("inside steps", "train", nth=13, **CTRL_C),
    Fault("inside steps", "train", nth=2),
    Fault("inside snapshot", "train", nth=2),
    Fault("inside record", "train", nth=2),
    Fault("after record", "outer"),
    Fault("inside steps", "train", nth=4, **CTRL_C),
]


@pytest.mark.slow
@pytest.mark.timeout(900)  # eight runs of a command, on machines that may be busy
def test_a_run_with_late_modules_that_is_killed_ends_like_one_that_was_not(
    dipaco, config_file, tmp_path
):
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "run"
    ended = dipaco("train", config_file, "--run", undisturbed, *DELAYED)
    assert ended.code == 0, ended.err
    command = ("train", config_file, *DELAYED)
    killed_at_each(dipaco, command, folder, FAULTS, facts(undisturbed))
