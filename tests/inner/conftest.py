"""A model so small that its gradient can be done by hand: predictions x w + b, squared errors."""

import jax.numpy as jnp
import numpy as np
import pytest

from dipaco.inner.config import InnerSettings


def squared_errors(parts, batch):
    """(summed squared error, targets); rows of weight 0 are padding, as the end of a short text."""
    predicted = batch["x"] @ parts["w"]["kernel"] + parts["w"]["bias"][None]
    errors = jnp.where(batch["weight"] > 0, (predicted - batch["y"]) ** 2, 0.0)
    return errors.sum(), batch["weight"].sum()


@pytest.fixture
def loss_fn():
    return squared_errors


@pytest.fixture
def parts():
    return {"w": {"kernel": jnp.array([[1.0], [-2.0]]), "bias": jnp.array([0.5])}}


@pytest.fixture
def batches():
    """Endless different batches of 8 rows, of which 1 to 8 count."""

    def make(start=0):
        while True:
            rng = np.random.default_rng(start)
            x = rng.normal(size=(8, 2)).astype(np.float32)
            y = (x @ [[2.0], [3.0]] + 1).astype(np.float32)
            weight = (np.arange(8) < rng.integers(1, 9)).astype(np.float32)[:, None]
            yield {"x": x, "y": y, "weight": weight}
            start += 1

    return make


@pytest.fixture
def settings():
    return InnerSettings(steps=4, batch_size=8, learning_rate=0.1, warmup_steps=2, clip_norm=1e6)
