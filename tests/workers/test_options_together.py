"""Options of a run, two by two: each pair that fits is in one of a few runs, which equal Algorithm
1 bit for bit; each pair that does not fit is refused with a sentence. `tools/fuzz_settings.py`
draws any more.
"""

import itertools
import random

import fuzz_settings
import pytest
from fuzz_settings import OPTIONS, RULES, SHAPES, Draw
from support import played_hosts
from support.played_hosts import Fleet

from dipaco.config import MODULAR
from dipaco.errors import DipacoError
from dipaco.routing.errors import TooFewRouterDocuments
from dipaco.runs import small_models
from dipaco.workers import replay

# Modules, own rule, and options with the number of their value: in pairs, every pair that fits.
ROWS = """
flat_moe; router; codec=2 delay=2 rescale_by_fan_in=1 weigh_by_documents=1 router=1 alternations=2
    rule=1 optimizer=1 absent_tokens=1 loss_chunks=1 slices=1 sent_snapshots=1 kept=1
2x2; path loss; path_share=3 delay=1 weigh_by_documents=1 router=3 alternations=3 rule=1 overlap=1
    optimizer=1 absent_tokens=1 accumulation=1 base=1 kept=1
2x2; router; rescale_by_fan_in=1 weigh_by_documents=1 synchronous=1 router=1 overlap=1 base=1
    optimizer=1 slices=1 sent_snapshots=1
2x2; none; codec=3 quorum=1 rescale_by_fan_in=1 rule=2 overlap=1 hold_out=1 absent_tokens=1 base=1
    slices=1 sent_snapshots=1
one_path; none; synchronous=1 rule=1 accumulation=1 rematerialise=1 loss_chunks=1 kept=1
2x2; none; quorum=1 delay=1 vocabulary_rows=1 router=3 alternations=1 overlap=1 hold_out=1
    accumulation=1 rematerialise=1 loss_chunks=1 base=1 kept=1
tied_head; none; codec=4 quorum=1 delay=2 vocabulary_rows=1 rescale_by_fan_in=1 alternations=2
    rule=1 overlap=1 optimizer=1 hold_out=1 accumulation=1 rematerialise=1 base=1 slices=1
grid_with_private_parts; outer step; codec=1 quorum=1 weigh_by_documents=1 alternations=1 overlap=1
    hold_out=1 absent_tokens=1 accumulation=1 rematerialise=1 loss_chunks=1 slices=1
    sent_snapshots=1
2x2; none; codec=3 path_share=2 vocabulary_rows=1 weigh_by_documents=1 router=2 alternations=3
    hold_out=1 rematerialise=1 slices=1
diloco; router; codec=1 path_share=1 quorum=1 delay=2 vocabulary_rows=1 rescale_by_fan_in=1 rule=2
    absent_tokens=1 loss_chunks=1 base=1 sent_snapshots=1
"""


def drawn_in(row):
    """`2x2; router; codec=2 delay=1` -> these modules, that own rule, options with their values."""
    modules, rule, numbers = row.split("; ")
    pairs = (word.split("=") for word in numbers.split())
    return Draw(modules, rule, {option: OPTIONS[option][int(n)] for option, n in pairs})


DRAWS = [drawn_in(row) for row in ROWS.strip().replace("\n    ", " ").splitlines()]

# Pairs of values that do not fit: option, values, other option, its values. `*` = all but default.
REFUSED = (
    ("modules", "one_path", "own_rule", "router"),
    ("modules", "one_path", "router", (1, 3)),
    ("modules", "one_path", "rule", (2,)),
    ("modules", "one_path", "alternations", "*"),
    ("modules", "diloco", "alternations", "*"),
    ("modules", "one_path", "overlap", "*"),
    ("alternations", "*", "rule", (2,)),
    ("own_rule", "router", "router", (2, 3)),
    ("own_rule", "path loss", "loss_chunks", "*"),
    ("own_rule", "outer step", "synchronous", "*"),
    ("synchronous", "*", "codec", "*"),
    ("synchronous", "*", "path_share", "*"),
    ("synchronous", "*", "quorum", "*"),
    ("synchronous", "*", "delay", "*"),
    ("synchronous", "*", "vocabulary_rows", "*"),
    ("synchronous", "*", "alternations", "*"),
    ("synchronous", "*", "hold_out", "*"),
    ("synchronous", "*", "absent_tokens", "*"),
)
VALUES = {"modules": tuple(SHAPES), "own_rule": tuple(RULES), **OPTIONS}


def values_of(option, which):
    if isinstance(which, str) and which != "*":
        return (which,)
    return VALUES[option][1:] if which == "*" else [VALUES[option][number] for number in which]


def value_of(draw, option):
    named = {"modules": draw.modules, "own_rule": draw.rule, **draw.settings}
    return named.get(option, VALUES[option][0])


def refused_pairs():
    return {
        frozenset({(option, value), (other, its)})
        for option, which, other, of_other in REFUSED
        for value in values_of(option, which)
        for its in values_of(other, of_other)
    }


def test_pairs_that_do_not_fit_are_refused_with_a_sentence_and_no_others():
    refused, wrong = set(), []
    for option, other in itertools.combinations(VALUES, 2):
        for value, its in itertools.product(VALUES[option][1:], VALUES[other][1:]):
            settings = {option: value, other: its}
            draw = Draw(settings.pop("modules", "2x2"), settings.pop("own_rule", "none"), settings)
            try:
                fuzz_settings.check(draw)
            except DipacoError as error:
                refused.add(frozenset({(option, value), (other, its)}))
                if "`" not in str(error) or len(str(error).split()) < 8:
                    wrong.append(f"{draw}: {error}")
    assert refused == refused_pairs()
    assert wrong == []


def test_every_value_and_every_pair_of_options_that_fit_is_in_a_run():
    """A pair of options: both changed, and each changed beside the other's default."""

    def is_on(draw, option):
        return value_of(draw, option) != VALUES[option][0]

    found = {(option, value_of(draw, option)) for draw in DRAWS for option in VALUES}
    assert found == {(option, value) for option in VALUES for value in VALUES[option]}
    never = {frozenset({a, b}) for a, of_a, b, of_b in REFUSED if of_a == of_b == "*"}
    wanted = {
        (option, other, *both)
        for option, other in itertools.combinations(VALUES, 2)
        for both in itertools.product((False, True), repeat=2)
        if not all(both) or frozenset({option, other}) not in never
    }
    here = {
        (option, other, is_on(draw, option), is_on(draw, other))
        for draw in DRAWS
        for option, other in itertools.combinations(VALUES, 2)
    }
    assert wanted - here == set()


@pytest.mark.parametrize("number", range(len(DRAWS)))
def test_a_run_of_many_options_is_that_of_algorithm_1(number, tmp_path, monkeypatch):
    fit = small_models.FIT._replace(rounds=2, steps=15, batch_size=8, d_model=16)
    monkeypatch.setattr(small_models, "FIT", fit)
    draw = DRAWS[number]
    dice = random.Random(number)
    fleet = Fleet.drawn(random.Random(f"fleet {number}"))
    with fuzz_settings.trained(draw, tmp_path / "run", dice, fleet) as run:
        assert replay.differences(run) == []
        assert "quorum" in draw.settings or not run.ledger.quorums.late(MODULAR)


def test_late_paths_of_a_quorum_are_among_them(tmp_path):
    draw = drawn_in("2x2; none; quorum=1 base=1")
    with fuzz_settings.trained(draw, tmp_path / "run", random.Random(0)) as run:
        assert run.ledger.quorums.late(MODULAR)
        assert replay.differences(run) == []


def test_a_failure_that_no_retry_can_mend_ends_a_made_up_run(tmp_path, monkeypatch):
    """The text is too little. It is no fault of the run, which would be "no end"."""
    monkeypatch.setattr(played_hosts, "MOST_MOVES", 1000)
    few = "data.sources=toy:?documents=12&words=30 base.steps=0"
    draw = Draw("diloco", "none", {"router": "routing.kind=random", "few": few})
    with (
        pytest.raises(TooFewRouterDocuments),
        fuzz_settings.trained(draw, tmp_path / "run", random.Random(0)),
    ):
        pass
