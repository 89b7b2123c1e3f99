"""Whether the devices of this process can train a run; there are eight."""

import dataclasses

import pytest

from dipaco.errors import SettingsDisagree
from dipaco.model.config import MeshConfig
from dipaco.model.errors import BadMesh, DevicesUnfit, KernelUnavailable
from dipaco.runs.meshes import check_devices, check_number
from tests.support.tiny_run import TOY


def test_devices_that_fit_are_taken_and_too_few_are_refused():
    check_devices(dataclasses.replace(TOY, mesh=MeshConfig(data=4)))
    with pytest.raises(BadMesh, match=r"tensor=16 does not fit 8 devices"):
        check_devices(dataclasses.replace(TOY, mesh=MeshConfig(tensor=16)))


def test_where_a_mesh_takes_all_devices_the_batch_is_compared_with_them():
    with pytest.raises(DevicesUnfit, match=r"4 rows .* divided among the 8 devices"):
        check_devices(dataclasses.replace(TOY, mesh=MeshConfig(data=-1)))


def test_a_kernel_that_no_device_here_has_is_refused():
    model = dataclasses.replace(TOY.model, compute_dtype="bfloat16", attention_kernel="cudnn")
    with pytest.raises(KernelUnavailable):
        check_devices(dataclasses.replace(TOY, model=model))


def test_of_devices_elsewhere_their_number_says_whether_they_can_train():
    wide = dataclasses.replace(TOY, mesh=MeshConfig(tensor=16))
    check_number(wide, 16, hosts=2)
    check_number(wide, 32, hosts=1)
    with pytest.raises(BadMesh, match=r"tensor=16 does not fit 12 devices"):
        check_number(wide, 12, hosts=1)
    with pytest.raises(SettingsDisagree, match=r"have 32 devices together, and the mesh takes 16"):
        check_number(wide, 32, hosts=2)
    with pytest.raises(SettingsDisagree, match=r"4 rows .* divided among the 16 devices"):
        check_number(dataclasses.replace(TOY, mesh=MeshConfig(data=-1)), 16, hosts=1)
