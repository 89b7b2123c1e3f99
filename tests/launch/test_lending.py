"""What of a machine a process may use."""

import os
import subprocess
import sys

import jax
import pytest

from dipaco.errors import BadSetting
from dipaco.launch import lending
from dipaco.launch.devices import VisibleDevices
from dipaco.launch.errors import NoSuchDevice


@pytest.fixture
def platforms():
    before = jax.config.jax_platforms
    yield lambda: jax.config.jax_platforms
    jax.config.update("jax_platforms", before)


def test_a_process_keeps_as_many_processors_as_it_lends():
    script = (
        "import os; from dipaco.launch.lending import lend_processors; lend_processors(1); "
        "print(len(os.sched_getaffinity(0)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.strip() == "1", ended.stderr


def test_one_gpu_of_several_is_chosen_by_its_number(monkeypatch, platforms):
    monkeypatch.setattr(lending, "visible_devices", lambda: VisibleDevices("gpu", ("2", "5")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    lending.lend_device("gpu:1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    assert platforms() == "cuda"
    with pytest.raises(NoSuchDevice, match=r"`gpu:2` is asked for, and 2 GPUs are visible"):
        lending.lend_device("gpu:2")


def test_without_a_gpu_none_is_lent_and_the_processor_is(monkeypatch, platforms):
    monkeypatch.setattr(lending, "visible_devices", lambda: VisibleDevices("cpu", ()))
    with pytest.raises(NoSuchDevice, match="0 GPUs"):
        lending.lend_device("gpu")
    lending.lend_device("cpu")
    assert platforms() == "cpu"


@pytest.mark.parametrize("text", ["", "cuda", "cpu:1", "gpu:", "gpu:-1", "gpu:x"])
def test_another_word_is_no_device(text):
    with pytest.raises(BadSetting, match="`--device`"):
        lending.lend_device(text)
