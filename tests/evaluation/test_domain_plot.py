"""Where the domains went, at any size: nothing is left out of the sums, and a cell is its path."""

import numpy as np
import pytest

from dipaco.evaluation.domain_plot import MOST_DOMAINS, TITLE, domain_table
from dipaco.evaluation.path_grid import chosen_levels, path_grid
from dipaco.evaluation.plots import report_figure
from dipaco.evaluation.tables import PathShare
from tests.evaluation.test_plots import grid, report_of
from tests.support.pictures import cut_off, overlapping

MOST_INCHES = 20  # what was 10,600 pixels tall is a page now: 3,000


def shares(topology, domains):
    """Each path has documents of all domains, and of one more than of the others."""
    return [
        PathShare(
            path=path,
            documents=domains + 9,
            domains={f"domain_{k}": 1 + 9 * (k == path % domains) for k in range(domains)},
            modules=[str(module) for module in topology.modules_of(path)],
        )
        for path in range(topology.num_paths)
    ]


def figure_of(topology, domains):
    report = report_of(topology)
    report.shards[:] = shares(topology, domains)
    return report_figure(report)


@pytest.fixture(scope="module")
def large():
    return figure_of(grid(16, 16), 256)


@pytest.mark.parametrize(("experts", "domains"), [((2, 2), 256), ((256,), 40), ((3, 3, 4), 14)])
def test_nothing_lies_over_anything_else_and_it_is_as_large_as_a_page(experts, domains):
    figure = figure_of(grid(*experts), domains)
    assert figure.get_size_inches()[1] < MOST_INCHES
    assert overlapping(figure) == []
    assert cut_off(figure) == []


def test_256_paths_and_256_domains_can_be_read(large):
    assert large.get_size_inches()[1] < MOST_INCHES
    assert overlapping(large) == []
    assert cut_off(large) == []


def test_a_cell_is_the_path_of_its_row_and_column_with_its_leading_domain(large):
    topology = grid(16, 16)
    axes = next(a for a in large.axes if a.get_title(loc="left").startswith("Paths"))
    said = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(said) == 256
    for path in range(256):
        row, column = (module.expert for module in topology.modules_of(path)[:2])
        assert said[column, row] == f"domain_{path}\n4% of 265"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("level_0", "level_1")


def test_domains_are_shown_by_the_modules_that_they_train(large):
    axes = next(a for a in large.axes if a.get_title(loc="left") == TITLE)
    (image,) = axes.images
    drawn = np.asarray(image.get_array().filled(np.nan))
    assert drawn.shape == (MOST_DOMAINS, 16 + 1 + 16)
    assert np.isnan(drawn[:, 16]).all()
    np.testing.assert_allclose(drawn[:, :16].sum(axis=1), 1)
    np.testing.assert_allclose(drawn[:, 17:].sum(axis=1), 1)
    names = [label.get_text() for label in axes.get_yticklabels()]
    row = names.index("domain_0  265")  # of path 0 alone more than of the others
    assert drawn[row].tolist() == [25 / 265, *[16 / 265] * 15, pytest.approx(np.nan, nan_ok=True),
                                   25 / 265, *[16 / 265] * 15]  # fmt: skip


def test_the_smaller_of_many_domains_share_the_last_row_and_no_document_is_lost():
    topology = grid(2, 2)
    few, many = shares(topology, MOST_DOMAINS), shares(topology, MOST_DOMAINS + 1)
    assert len(domain_table(few).names) == len(domain_table(many).names) == MOST_DOMAINS
    assert "more" not in domain_table(few).names[-1]
    names, counts = domain_table(many)
    assert names[-1] == f"2 more domains  {counts[-1].sum()}"
    for path, shard in enumerate(many):
        assert counts[:, path].sum() == sum(shard.domains.values())
    largest = {f"domain_{k}  13" for k in range(4)}  # 4 paths have 10 of one of them, and 1 else
    assert largest <= set(names[:-1])


def test_a_grid_has_the_levels_that_offer_a_choice_and_others_stand_in_their_order():
    assert chosen_levels(shares(grid(3, 1, 2), 1)) == {
        "level_0": [f"level_0/{k:04d}" for k in range(3)],
        "level_2": [f"level_2/{k:04d}" for k in range(2)],
    }
    placed = path_grid(shares(grid(3, 2), 1))
    assert (placed.rows, placed.columns) == (["0", "1", "2"], ["0", "1"])
    assert placed.places == {path: divmod(path, 2) for path in range(6)}
    cube = path_grid(shares(grid(2, 2, 2), 1))
    assert cube.places == {path: divmod(path, 3) for path in range(8)}
    assert (cube.rows, cube.columns) == (["0", "3", "6"], ["+0", "+1", "+2"])
