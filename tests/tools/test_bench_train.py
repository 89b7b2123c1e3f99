"""The benchmark of the step compares equals: the losses of PyTorch's model are ours."""

import numpy as np
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_three_steps_of_both_have_the_same_losses(tmp_path, monkeypatch, dtype):
    pytest.importorskip("torch")
    import bench_train

    small = {"vocab_size": 512, "d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 48}
    monkeypatch.setattr(bench_train, "SHAPE", small | {"max_length": 64})
    monkeypatch.setattr(bench_train, "ROWS", 4)
    monkeypatch.setattr(bench_train, "RATE", np.float32(1e-3))
    bench_train.begin(tmp_path / "start.npy")
    start = np.load(tmp_path / "start.npy", allow_pickle=True).item()
    ours, theirs = bench_train.our_step(start, dtype), bench_train.their_step(start, dtype, "eager")
    losses = np.array([(ours(), theirs()) for _ in range(3)])
    assert losses[-1, 0] < losses[0, 0] - 0.01
    np.testing.assert_allclose(*losses.T, rtol=bench_train.TOLERANCE[dtype])
