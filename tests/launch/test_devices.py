"""Which devices are whose: no two workers share one unless there are too few."""

import importlib.util
import os
import subprocess
import sys

import jax
import pytest

from dipaco.errors import BadSetting
from dipaco.launch import devices
from dipaco.launch.devices import (
    FAKE_DEVICES,
    JAX_DEVICES,
    MEMORY_FRACTIONS,
    VisibleDevices,
    devices_of,
    is_for_cpu_only,
    lend_device,
    visible_devices,
)
from dipaco.launch.errors import NoSuchDevice, TooFewDevices

EIGHT_GPUS = VisibleDevices("gpu", tuple("01234567"))


@pytest.fixture
def dev(tmp_path):
    def make(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    return make


def test_visible_gpus_are_those_of_the_machine_that_the_environment_does_not_hide(dev):
    """By CUDA's numbers: in a container the files' own go on from those of the whole machine."""
    gpus = dev("nvidiactl", "nvidia-uvm", "nvidia3", "nvidia4", "nvidia10")
    assert visible_devices({}, gpus) == VisibleDevices("gpu", ("0", "1", "2"))
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "1,2"}, gpus).ids == ("1", "2")
    for first in ("0,-1,1", "0,3", " 0,NoDevFiles,1", "0,", "0,,1", "0,01"):
        assert visible_devices({"CUDA_VISIBLE_DEVICES": first}, gpus).ids == ("0",)
    named = "GPU-8932f937-d72c,MIG-1"
    assert visible_devices({"CUDA_VISIBLE_DEVICES": named}, gpus).ids == tuple(named.split(","))
    for none in ("", "-1", "-1,0", "NoDevFiles", "none", "3"):
        assert visible_devices({"CUDA_VISIBLE_DEVICES": none}, gpus).kind == "cpu"
    assert visible_devices({"JAX_PLATFORMS": "cpu"}, gpus).kind == "cpu"


def test_tpu_chips_are_found_under_either_name(dev):
    assert visible_devices({}, dev("accel0", "accel1")) == VisibleDevices("tpu", ("0", "1"))


def test_a_machine_without_gpus_and_tpus_computes_on_its_cpu(dev):
    assert visible_devices({}, dev("null", "vfio/vfio")) == VisibleDevices("cpu", ())


@pytest.mark.parametrize(
    ("each", "ids"), [(1, list("01234567")), (4, ["0,1,2,3", "4,5,6,7"])], ids=["one", "four"]
)
def test_workers_get_gpus_of_their_own(each, ids):
    of = devices_of(EIGHT_GPUS, each, len(ids), None, {})
    assert [of(place) for place in range(len(ids))] == [{"CUDA_VISIBLE_DEVICES": i} for i in ids]


def test_workers_that_share_a_gpu_share_nine_tenths_of_its_memory():
    of = devices_of(VisibleDevices("gpu", ("5",)), 1, 3, None, {})
    shared = {"CUDA_VISIBLE_DEVICES": "5", "XLA_CLIENT_MEM_FRACTION": "0.300"}
    assert [of(place) for place in range(3)] == [shared] * 3
    of = devices_of(VisibleDevices("gpu", ("5",)), 1, 3, 0.2, {})
    assert of(0)["XLA_CLIENT_MEM_FRACTION"] == "0.200"


def test_a_worker_alone_on_a_gpu_has_all_of_its_memory():
    """As with eight workers and one evaluator on eight GPUs, of which the first is shared."""
    of = devices_of(EIGHT_GPUS, 1, 9, None, {})
    shared = {"CUDA_VISIBLE_DEVICES": "0", "XLA_CLIENT_MEM_FRACTION": "0.450"}
    assert [of(0), of(8)] == [shared] * 2
    assert [of(place) for place in range(1, 8)] == [
        {"CUDA_VISIBLE_DEVICES": str(place)} for place in range(1, 8)
    ]
    of = devices_of(EIGHT_GPUS, 3, 5, None, {})  # two places of three; two GPUs are left
    fractions = [of(place)["XLA_CLIENT_MEM_FRACTION"] for place in range(5)]
    assert fractions == ["0.300", "0.450", "0.300", "0.450", "0.300"]


def test_a_worker_that_is_added_later_takes_no_more_than_its_share():
    of = devices_of(VisibleDevices("gpu", tuple("01")), 1, 3, None, {})
    assert of(3) == {"CUDA_VISIBLE_DEVICES": "1", "XLA_CLIENT_MEM_FRACTION": "0.450"}
    assert of(4)["XLA_CLIENT_MEM_FRACTION"] == "0.300"


def test_tpu_chips_are_never_shared():
    of = devices_of(VisibleDevices("tpu", tuple("0123")), 2, 2, None, {})
    assert [of(place)["TPU_VISIBLE_CHIPS"] for place in (0, 1)] == ["0,1", "2,3"]
    with pytest.raises(
        TooFewDevices, match=r"need 6 devices here, and 4 of kind TPU.*`--evaluators`"
    ):
        devices_of(VisibleDevices("tpu", tuple("0123")), 2, 3, None, {})


def test_more_devices_than_there_are_is_an_error():
    with pytest.raises(TooFewDevices, match="need 9 devices here, and 8 of kind GPU"):
        devices_of(EIGHT_GPUS, 9, 1, None, {})


def test_on_cpu_each_worker_gets_the_wanted_number_of_devices_and_keeps_other_flags():
    flags = {"XLA_FLAGS": "--xla_a=1 --xla_force_host_platform_device_count=8"}
    of = devices_of(VisibleDevices("cpu", ()), 2, 3, None, flags)
    assert of(1) == {"XLA_FLAGS": "--xla_a=1 --xla_force_host_platform_device_count=2"}


def test_a_count_of_devices_in_jaxs_own_variable_does_not_overrule_that_of_the_launcher():
    of = devices_of(VisibleDevices("cpu", ()), 4, 1, None, {JAX_DEVICES: "2", "XLA_FLAGS": "--a=1"})
    assert of(0) == {JAX_DEVICES: "4", "XLA_FLAGS": f"--a=1 {FAKE_DEVICES}=4"}


def test_without_a_number_of_devices_nothing_is_hidden_and_gpu_memory_is_shared():
    assert devices_of(EIGHT_GPUS, None, 4, None, {})(2) == {MEMORY_FRACTIONS[0]: "0.225"}
    assert devices_of(EIGHT_GPUS, None, 1, None, {})(0) == {}
    assert devices_of(VisibleDevices("cpu", ()), None, 4, None, {})(2) == {}


@pytest.mark.parametrize("name", MEMORY_FRACTIONS)
@pytest.mark.parametrize("each", [None, 1])
def test_a_share_of_memory_that_the_environment_gives_is_inherited_under_its_name(each, name):
    """JAX refuses to start where both names are set."""
    of = devices_of(VisibleDevices("gpu", ("0",)), each, 3, None, {name: ".1"})
    assert not set(of(1)) & set(MEMORY_FRACTIONS)
    of = devices_of(VisibleDevices("gpu", ("0",)), each, 3, 0.2, {name: ".1"})
    assert {key: of(1).get(key) for key in MEMORY_FRACTIONS if key in of(1)} == {name: "0.200"}


def test_jax_without_plugins_is_for_the_cpu_only(monkeypatch):
    monkeypatch.setattr(devices, "entry_points", lambda group: ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert is_for_cpu_only({})
    assert not is_for_cpu_only({"PJRT_NAMES_AND_LIBRARY_PATHS": "own:/lib/own.so"})


@pytest.mark.parametrize(
    "file",
    ["jax_plugins/own/__init__.py", "own-1.dist-info/entry_points.txt", "libtpu/__init__.py"],
)
def test_a_plugin_of_jax_is_found_in_each_place_where_it_may_be(tmp_path, monkeypatch, file):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("[jax_plugins]\nown = own\n" if file.endswith("txt") else "")
    (tmp_path / file).with_name("METADATA").write_text("Name: own\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_for_cpu_only({})


@pytest.fixture
def platforms():
    before = jax.config.jax_platforms
    yield lambda: jax.config.jax_platforms
    jax.config.update("jax_platforms", before)


def test_a_process_keeps_as_many_processors_as_it_lends():
    script = (
        "import os; from dipaco.launch.devices import lend_processors; lend_processors(1); "
        "print(len(os.sched_getaffinity(0)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.strip() == "1", ended.stderr


def test_one_gpu_of_several_is_chosen_by_its_number(monkeypatch, platforms):
    monkeypatch.setattr(devices, "visible_devices", lambda: VisibleDevices("gpu", ("2", "5")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    lend_device("gpu:1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    assert platforms() == "cuda"
    with pytest.raises(NoSuchDevice, match=r"`gpu:2` is asked for, and 2 GPUs are visible"):
        lend_device("gpu:2")


def test_without_a_gpu_none_is_lent_and_the_processor_is(monkeypatch, platforms):
    monkeypatch.setattr(devices, "visible_devices", lambda: VisibleDevices("cpu", ()))
    with pytest.raises(NoSuchDevice, match="0 GPUs"):
        lend_device("gpu")
    lend_device("cpu")
    assert platforms() == "cpu"


@pytest.mark.parametrize("text", ["", "cuda", "cpu:1", "gpu:", "gpu:-1", "gpu:x"])
def test_another_word_is_no_device(text):
    with pytest.raises(BadSetting, match="`--device`"):
        lend_device(text)
