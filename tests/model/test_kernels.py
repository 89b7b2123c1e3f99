"""Which form of a computation runs on which device."""

import dataclasses
import types

import jax
import pytest

from dipaco.errors import BadSetting
from dipaco.launch.equal_bits import EQUAL_BITS
from dipaco.model.config import ModelConfig
from dipaco.model.errors import KernelUnavailable
from dipaco.model.kernels import attention_kernel, check_kernel, result_dtype, when_scoring

MODEL = ModelConfig(
    vocab_size=64, d_model=32, num_layers=1, num_heads=4, d_ff=32, max_length=256, head_dim=8
)
ROUNDED = dataclasses.replace(MODEL, compute_dtype="bfloat16")
CUDNN = dataclasses.replace(ROUNDED, attention_kernel="cudnn")


@pytest.fixture
def h100(monkeypatch):
    """JAX says that it computes on one."""
    device = types.SimpleNamespace(
        device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0", platform="gpu"
    )
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return device


def test_on_cpu_the_default_is_plain_and_an_unknown_kernel_is_refused():
    assert attention_kernel(ROUNDED, 128) == "plain"
    with pytest.raises(BadSetting, match=r"attention_kernel.*auto, plain, cudnn, splash"):
        dataclasses.replace(MODEL, attention_kernel="flash")


def test_where_cudnn_is_asked_for_and_does_not_run_a_sentence_says_so():
    with pytest.raises(KernelUnavailable, match=r"attention_kernel.* is cudnn, and cpu does not"):
        check_kernel(CUDNN)
    with pytest.raises(KernelUnavailable, match=r"is splash, and cpu does not .* splash for TPUs"):
        check_kernel(dataclasses.replace(CUDNN, attention_kernel="splash"))


def test_what_is_scored_needs_no_kernel_of_training():
    assert attention_kernel(when_scoring(CUDNN), 128) == "plain"
    plain = dataclasses.replace(ROUNDED, attention_kernel="plain")
    assert when_scoring(plain) == plain


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compute_dtype": "float32"}, "as compute_dtype is float32"),
        ({"head_dim": 12}, "as heads have 12 values"),
        ({"head_dim": 264}, "as heads have 264 values"),
    ],
)
def test_a_model_that_cudnn_does_not_take_is_refused(changes, said):
    with pytest.raises(BadSetting, match=f"attention_kernel.* is 'cudnn'.*{said}"):
        dataclasses.replace(CUDNN, **changes)


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("flags", ["", f"{EQUAL_BITS}=true"])
def test_on_a_gpu_the_default_is_cudnn_with_equal_bits_too(monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert attention_kernel(ROUNDED, 128) == "cudnn"
    assert attention_kernel(ROUNDED, 127) == attention_kernel(MODEL, 128) == "plain"
    check_kernel(CUDNN)


def test_large_heads_need_a_hopper_and_are_asked_for_by_name(h100):
    large = dataclasses.replace(CUDNN, head_dim=136)
    check_kernel(large)
    assert attention_kernel(when_scoring(large), 128) == "plain"
    h100.compute_capability = "8.0"
    check_kernel(dataclasses.replace(CUDNN, head_dim=128))
    with pytest.raises(KernelUnavailable, match=r"heads of 136.* Hopper"):
        check_kernel(large)


@pytest.mark.parametrize(("count", "scores"), [(1, "splash"), (4, "plain")])
def test_on_a_tpu_the_default_is_splash(monkeypatch, count, scores):
    device = types.SimpleNamespace(device_kind="TPU v5 lite", platform="tpu")
    monkeypatch.setattr(jax, "devices", lambda: [device] * count)
    assert attention_kernel(ROUNDED, 100) == "splash"
    assert attention_kernel(MODEL, 100) == "plain"
    assert attention_kernel(when_scoring(ROUNDED), 100) == scores
    check_kernel(dataclasses.replace(ROUNDED, attention_kernel="splash"))
    with pytest.raises(KernelUnavailable, match="is cudnn, and TPU v5 lite does not"):
        check_kernel(CUDNN)


@pytest.mark.usefixtures("h100")
def test_on_a_gpu_results_have_the_type_of_what_was_multiplied():
    assert result_dtype(ROUNDED) == "bfloat16"
    assert result_dtype(MODEL) == "float32"
    assert result_dtype(dataclasses.replace(ROUNDED, result_dtype="float32")) == "float32"


def test_on_cpu_results_are_float32_unless_told_otherwise():
    assert result_dtype(ROUNDED) == "float32"
    assert result_dtype(dataclasses.replace(ROUNDED, result_dtype="bfloat16")) == "bfloat16"


def test_rounding_what_is_multiplied_in_float32_is_refused():
    with pytest.raises(BadSetting, match=r"result_dtype.*compute_dtype is float32"):
        dataclasses.replace(MODEL, result_dtype="bfloat16")
