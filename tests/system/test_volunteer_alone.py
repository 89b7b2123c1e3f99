"""A machine that lends itself needs the extra `volunteer` and nothing else."""

import os
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco.config import MODULAR
from dipaco.errors import OF_TRAINING
from dipaco.swarm.network.credentials import save_credential
from dipaco.swarm.network.messages import RUN_OVER
from tests.support.absent_packages import Bare, declared, import_names, installed_with
from tests.support.backbone_rig import backbone_of, issued, phase_of
from tests.support.swarm_rig import largest_difference, plain_states
from tests.support.tiny_run import HOME, toy_run  # noqa: F401
from tests.support.waiting import until

STEPS = 3
NOT_NEEDED = {"torch", "pyarrow", "matplotlib", "grain", "array-record", "tokenizers"}


@pytest.fixture
def bare(tmp_path):
    made = Bare(tmp_path, declared("volunteer"))
    assert {"torch", "pyarrow"} & import_names(NOT_NEEDED) <= made.absent
    return made


def test_the_installation_has_neither_pytorch_nor_what_trains_and_draws():
    assert not installed_with(declared("volunteer")) & NOT_NEEDED
    of_training = declared("volunteer", "train").keys() - declared("volunteer").keys()
    names = {name for name in import_names(of_training) if "/" not in name}
    assert names - {"pip", "_yaml", "pylab", "mpl_toolkits"} == OF_TRAINING


@pytest.mark.slow
def test_a_step_is_taken_over_tls_without_any_other_package(run, bare, tmp_path, command_cache):
    credentials = issued(run, {"backbone-0": "backbone", "ana": "volunteer"})
    backbone = backbone_of(run, 0, "backbone-0", credentials["backbone-0"], listen="127.0.0.1:0")
    save_credential(credentials["ana"], tmp_path / "ana.pass")
    asked = [backbone.address, "--token", str(tmp_path / "ana.pass")]
    environment = os.environ | {
        "PYTHONPATH": f"{bare.folder}{os.pathsep}{HOME}",
        "DIPACO_CACHE": str(command_cache),
        "JAX_PLATFORMS": "cpu",
    }

    def started(verb):
        return subprocess.Popen(
            [sys.executable, "-m", "dipaco.cli.main", "swarm", verb, *asked],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    result, volunteer = [], started("join")
    try:
        until(lambda: run.ledger.swarms.backbones(MODULAR, 0, is_staffed=True))
        leads = threading.Thread(
            target=lambda: result.append(phase_of(backbone, STEPS)), daemon=True
        )
        leads.start()
        leads.join(timeout=120)
        assert result, "it takes no step"
        assert largest_difference(result[0].state, plain_states(STEPS)[-1]) < 1e-5
        volunteer.send_signal(signal.SIGINT)
        said, _ = volunteer.communicate(timeout=60)
        assert volunteer.returncode == 0, said
        assert "Thank you" in said
        assert not bare.imported() & import_names(NOT_NEEDED)
        watched, _ = (watching := started("watch")).communicate(timeout=60)
        assert (watching.returncode, "ana" in watched) == (0, True), watched
    finally:
        volunteer.kill()
        volunteer.communicate()
        backbone.close(RUN_OVER)
