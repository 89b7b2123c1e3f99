"""The benchmark of the two ways in which serving takes its products."""

import jax
import numpy as np
from bench_products import SHAPES, Shape, seconds

from dipaco.model.spec import describe
from tests.support.serving_rig import CONFIG


def test_a_step_and_a_prompt_are_timed_both_ways():
    parts = jax.tree.map(lambda spec: np.zeros(spec.shape, np.float32), describe(CONFIG))
    for shape in (Shape(2, 1), Shape(1, 9)):
        columns, rows = seconds(CONFIG, parts, shape, rounds=2)
        assert len(columns) == len(rows) == 2
        assert min(*columns, *rows) > 0
    assert Shape(1, 512) in SHAPES
