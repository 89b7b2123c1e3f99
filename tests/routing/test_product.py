import numpy as np

from dipaco.routing.product import fit_centres, path_costs


def test_the_best_path_equals_brute_force_over_pairs(heaps):
    x_ND = heaps(50).astype(np.float64)
    centres, _ = fit_centres(
        x_ND, (3, 4), floor=0, capacity=None, restarts=1, iterations=10, seed=0
    )
    first_KD, second_KD = centres
    brute = [
        min(
            ((i, j) for i in range(3) for j in range(4)),
            key=lambda ij: ((x_D - np.concatenate([first_KD[ij[0]], second_KD[ij[1]]])) ** 2).sum(),
        )
        for x_D in x_ND
    ]
    fast = np.unravel_index(path_costs(x_ND, centres).argmin(axis=1), (3, 4))
    np.testing.assert_array_equal(np.stack(fast, axis=1), brute)


def test_a_vector_of_uneven_length_is_cut_in_nearly_equal_parts(heaps):
    centres, price_P = fit_centres(
        heaps(60)[:, :7], (2, 2, 2), floor=0, capacity=None, restarts=1, iterations=5, seed=0
    )
    assert [centre_KD.shape for centre_KD in centres] == [(2, 3), (2, 2), (2, 2)]
    assert price_P.shape == (8,)


def test_more_restarts_never_make_it_worse(heaps):
    x_ND = heaps(300)

    def objective(restarts):
        centres, price_P = fit_centres(
            x_ND, (6,), floor=0, capacity=1.25, restarts=restarts, iterations=20, seed=0
        )
        cost_NP = path_costs(x_ND, centres)
        return cost_NP[np.arange(300), (cost_NP + price_P).argmin(axis=1)].sum()

    assert objective(4) <= objective(1) + 1e-6
