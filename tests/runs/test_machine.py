"""The kind of a machine: two that may compute other bits are of two kinds."""

import importlib.metadata
import os
from types import SimpleNamespace

import jax
import pytest

from dipaco.runs import machine as kinds
from dipaco.runs.machine import PACKAGES, machine


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Versions are asked for again, and the tests' own flags are not there."""
    kinds._versions.cache_clear()
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    yield
    monkeypatch.undo()
    kinds._versions.cache_clear()


@pytest.mark.parametrize("package", ["numpy", "jax", "jaxlib", "optax", "flax"])
def test_another_version_of_what_computes_is_another_kind(monkeypatch, package):
    before, real = machine(), importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "9.9.9" if name == package else real(name)
    )
    kinds._versions.cache_clear()
    assert set(before.split(", ")) ^ set(machine().split(", ")) == {
        f"{package} {real(package)}",
        f"{package} 9.9.9",
    }
    assert package in PACKAGES


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("XLA_FLAGS", "--xla_a=true --xla_dump_to=/x", "XLA_FLAGS=--xla_a=true"),
        ("NVIDIA_TF32_OVERRIDE", "0", "NVIDIA_TF32_OVERRIDE=0"),
    ],
)
def test_settings_of_the_compiler_are_said_if_they_change_bits(monkeypatch, name, value, said):
    assert name not in machine()
    monkeypatch.setenv(name, value)
    assert machine().endswith(f", {said}")
    monkeypatch.setenv(name, "--xla_dump_to=/x")
    assert name not in machine()


def test_a_precision_that_is_not_the_default_is_said():
    with jax.default_matmul_precision("float32"):
        assert "matmul precision float32" in machine()
    assert "matmul precision" not in machine()


def test_a_gpu_is_said_with_its_driver_and_runtime(monkeypatch, tmp_path):
    gpu = SimpleNamespace(
        platform="gpu",
        device_kind="NVIDIA H100 80GB HBM3",
        client=SimpleNamespace(platform_version="PJRT C API\ncuda 12090"),
    )
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(kinds, "NVIDIA_DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("550.54.15\n")
    expected = "1 x NVIDIA H100 80GB HBM3 (PJRT C API cuda 12090, driver 550.54.15), 16 CPUs, jax "
    assert machine().startswith(expected)
    (tmp_path / "version").write_text("560.28.03\n")
    assert not machine().startswith(expected)
