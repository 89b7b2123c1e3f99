"""XLA's flag for equal bits: set where a GPU computes, left as it is where it is named."""

import pytest

from dipaco.launch.equal_bits import EQUAL_BITS, ask_for_equal_bits, equal_bits_asked


@pytest.fixture
def dev(tmp_path):
    (tmp_path / "nvidia0").touch()
    return tmp_path


@pytest.mark.parametrize(("before", "after"), [("", ""), ("--xla_a=1", "--xla_a=1 ")])
def test_a_gpu_is_asked_for_equal_bits_beside_other_flags(dev, before, after):
    environment = {"XLA_FLAGS": before}
    ask_for_equal_bits(environment, dev)
    assert environment["XLA_FLAGS"] == f"{after}{EQUAL_BITS}=true"
    assert equal_bits_asked(environment)


@pytest.mark.parametrize("said", [f"{EQUAL_BITS}=false", f"--xla_a=1 {EQUAL_BITS}=0"])
def test_a_flag_that_is_named_stays(dev, said):
    environment = {"XLA_FLAGS": said}
    ask_for_equal_bits(environment, dev)
    assert environment["XLA_FLAGS"] == said
    assert equal_bits_asked(environment) is False


@pytest.mark.parametrize("hidden", [{"JAX_PLATFORMS": "cpu"}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_without_a_gpu_nothing_is_set(dev, tmp_path, hidden):
    environment = dict(hidden)
    ask_for_equal_bits(environment, dev)
    assert environment == hidden
    ask_for_equal_bits(environment := {}, tmp_path / "none")
    assert environment == {}


def test_the_last_mention_counts():
    flags = f"{EQUAL_BITS}=false {EQUAL_BITS}"
    assert equal_bits_asked({"XLA_FLAGS": flags}) is True
    assert equal_bits_asked({}) is None
