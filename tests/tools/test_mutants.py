"""`tools/mutants.py`: its list is up to date, its verdicts are right, three mutants are killed."""

from pathlib import Path

import mutants
import pytest
from mutations.mutant import Mutant

ROOT = Path(__file__).parents[2]
SECONDS = 240.0
BY_NAME = {each.name: each for each in mutants.MUTANTS}


def test_every_mutant_changes_text_that_is_there_once_and_names_tests_that_are_there():
    assert [problem for each in mutants.MUTANTS if (problem := each.problem(ROOT))] == []
    assert len(BY_NAME) == len(mutants.MUTANTS) >= 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["digest-not-checked", "leases-never-end", "error-feedback-dropped"]
)
def test_a_broken_guarantee_is_noticed(name, tmp_path):
    mutant = BY_NAME[name]
    assert mutants.try_one(mutant, ROOT, tmp_path, SECONDS).code == mutants.FAILED


@pytest.fixture
def tree(tmp_path):
    """A program of one line and its test."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "pytest.ini").write_text(
        "[pytest]\naddopts = --disable-plugin-autoload -p pytest_timeout -p xdist.plugin\n"
    )
    (root / "sums.py").write_text("def add(one, other):\n    return one + other\n")
    (root / "test_sums.py").write_text(
        "import sums\n\ndef test_sums():\n    assert sums.add(2, 3) == 5\n"
    )
    return root


def changed(name, old, new):
    return Mutant(name, "sums.py", old, new, "sums are sums", ("test_sums.py::test_sums",))


TIMES = changed("times", "one + other", "one * other")
TURNED = changed("turned", "one + other", "other + one")
BROKEN = changed("broken", "one + other", "one +")


def test_a_mutant_is_killed_or_survives_and_one_that_cannot_be_loaded_is_an_error(tree, tmp_path):
    copies = tmp_path / "copies"
    copies.mkdir()
    answer = mutants.try_all([TIMES, TURNED, BROKEN], tree, copies, jobs=1, seconds=SECONDS)
    assert (answer["killed"], answer["survived"]) == (1, ["turned"])
    assert list(answer["errors"]) == ["broken"]
    assert "one + other" in (tree / "sums.py").read_text(), "the tree itself stays as it is"


def test_tests_that_fail_by_themselves_kill_nothing(tree, tmp_path):
    (tree / "test_sums.py").write_text("def test_sums():\n    assert False\n")
    copies = tmp_path / "copies"
    copies.mkdir()
    with pytest.raises(SystemExit, match="do not pass on the tree as it is"):
        mutants.try_all([TIMES], tree, copies, jobs=1, seconds=SECONDS)


@pytest.mark.parametrize(
    ("mutant", "says"),
    [
        (changed("gone", "one - other", ""), "is 0 times in sums.py"),
        (changed("twice", "other", "one"), "is 2 times in sums.py"),
        (changed("same", "one + other", "one + other"), "changes nothing"),
        (TIMES._replace(file="products.py"), "products.py is not there"),
        (TIMES._replace(tests=("test_sums.py::test_products",)), "no test test_sums.py::test_prod"),
    ],
    ids=lambda value: value.name if isinstance(value, Mutant) else "",
)
def test_a_mutant_that_is_out_of_date_says_so(tree, mutant, says):
    assert says in mutant.problem(tree)
