import numpy as np
import pytest

from dipaco.routing import kmeans as kmeans_module
from dipaco.routing.kmeans import kmeans


@pytest.mark.parametrize("seed", range(5))
def test_the_objective_never_rises(heaps, seed):
    fallen = np.diff(kmeans(heaps(400), 9, seed=seed).objectives)
    assert len(fallen) > 2
    assert (fallen <= 1e-3).all()  # of about 10,000: float32 rounding


def test_the_last_objective_is_the_sum_of_squared_distances_to_the_nearest_centre(heaps):
    x_ND = heaps(200)
    clusters = kmeans(x_ND, 4, seed=0, iterations=2)
    distance_NK = ((x_ND[:, None] - clusters.centres_KD[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(clusters.objectives[-1], distance_NK.min(axis=1).sum(), rtol=1e-5)


def test_distant_clusters_are_found(heaps):
    random = np.random.default_rng(0)
    x_ND = np.repeat([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]], 20, axis=0) + random.normal(
        size=(60, 2)
    )
    found = sorted(kmeans(x_ND, 3, seed=1).centres_KD.round(-1).tolist())
    assert found == [[0, 0], [0, 50], [50, 0]]


def test_an_empty_cluster_is_moved_to_where_it_helps(monkeypatch):
    x_ND = np.array([[0.0], [1.0], [10.0], [11.0]])
    bad_start = np.array([[0.5], [1000.0]], np.float32)
    monkeypatch.setattr(
        kmeans_module, "_seed_centres", lambda *_: kmeans_module.jnp.asarray(bad_start)
    )
    assert sorted(kmeans(x_ND, 2, seed=0).centres_KD.ravel()) == [0.5, 10.5]


def test_blocks_are_a_matter_of_memory_only(heaps, monkeypatch):
    x_ND = heaps(100)
    whole = kmeans(x_ND, 4, seed=3).objectives[-1]
    monkeypatch.setattr(kmeans_module, "BLOCK_ROWS", 32)
    assert kmeans(x_ND, 4, seed=3).objectives[-1] == pytest.approx(whole, rel=1e-5)


def test_documents_that_are_all_alike_are_no_trouble():
    clusters = kmeans(np.ones((8, 3)), 3, seed=0)
    assert np.isfinite(clusters.centres_KD).all()
    assert clusters.objectives[-1] == 0
