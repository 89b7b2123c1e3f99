"""Colours and marks: told apart by colour-blind readers and in grey, and equal in all pictures."""

import itertools

import numpy as np
import pytest
from bench_links import nth_look
from matplotlib.colors import to_rgb

from dipaco.config import BASELINES, MODULAR
from dipaco.evaluation.style import LOOKS, look_of

# Machado, Oliveira and Fernandes 2009, severity 1, on linear sRGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ @ np.ones(3)
LEAST_DISTANCE = 12.0  # of two colours in CIELAB; 2 can just be seen side by side


def lab(colour, blindness):
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(BLINDNESS[blindness] @ linear, 0, 1)
    ratio = TO_XYZ @ seen / WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_arms_are_told_apart_by_colour(blindness):
    for one, other in itertools.combinations(LOOKS.values(), 2):
        difference = lab(one.colour, blindness) - lab(other.colour, blindness)
        assert np.linalg.norm(difference) > LEAST_DISTANCE, (one, other)


def test_arms_are_told_apart_in_grey():
    assert len({look.dashes for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.mark for look in LOOKS.values()}) == len(LOOKS)


def test_every_arm_of_a_run_has_a_look_of_its_own():
    assert {MODULAR, *BASELINES} <= LOOKS.keys()
    assert len({look.colour for look in LOOKS.values()}) == len(LOOKS)


def test_a_row_of_a_report_and_of_a_sweep_look_the_same():
    assert look_of("2x2/dense_equal_tokens") == look_of("dense_equal_tokens")
    others = [
        look_of("modular", name)
        for name in ("best_path", "ensemble", "ensemble_2", "ensemble_renewed")
    ]
    assert {look.colour for look in others} == {look_of("modular").colour}
    assert len({look.mark for look in (look_of("modular"), *others)}) == 5


def test_contenders_of_an_arm_share_its_colour_and_nothing_else():
    looks = [nth_look(MODULAR, number) for number in range(5)]
    assert {look.colour for look in looks} == {look_of(MODULAR).colour}
    assert len({(look.dashes, look.mark) for look in looks}) == 5
    for one, other in itertools.pairwise(looks):
        assert one.dashes != other.dashes
        assert one.mark != other.mark
