"""Every setting has a sentence, which the page and `dipaco config show --explain` are made of."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import settings_page
from annotated_types import Ge, Gt, Le, Lt

from dipaco.cli.main import main
from dipaco.config import RunConfig
from dipaco.errors import BadSetting
from dipaco.model.config import ShardingRules
from dipaco.overrides import load_config, load_sweep, settings
from dipaco.settings import (
    REQUIRED,
    bounds_in_words,
    check_values,
    describe_kind,
    find,
    groups_of,
    kind_in_words,
    plain,
    sentences_of,
    value_in_words,
)
from tests.support.failures import failures

CONFIGS = Path(__file__).parents[1] / "configs"
ALL = {each.name: each for group in groups_of(RunConfig) for each in group.settings}
NUMBERS = [name for name, each in ALL.items() if re.search("number", kind_in_words(each.kind))]
# What a number counts, or what it is a share, multiple or size of.
UNITS = (
    "bytes|tokens|steps|rows|documents|phases|paths|blocks|heads|values|modules|rounds|iterations|"
    "processes|devices|pieces|seconds|megabits a second|nats|times|share|over the mean's|rate|"
    "decay|number|norm|weight|logarithms"
)
OF_SECTION = {  # of DiPaCo -> settings that come from there
    "2.3": "topology topology.levels.experts",
    "2.4": "routing.kind data.prefix_tokens routing.overlap routing.alternations "
    "routing.target_share routing.rule reroute.every reroute.steps",
    "2.7": "inner.hold_out outer.rescale_by_fan_in outer.weigh_by_documents",
    "3": "outer.path_share",
    "4": "base.steps inner.steps inner.batch_size inner.learning_rate inner.warmup_steps "
    "inner.weight_decay outer.learning_rate outer.momentum",
    "4.5": "outer.synchronous",
}
FROM_THE_PAPER = {name: of for of, names in OF_SECTION.items() for name in names.split()}


KEPT_AS = {  # why settings are there that no shipped config, sweep or page sets
    "a sweep sets it, as `--seeds` says": "seed",
    "read from the checkpoint that `--init-from` names": (
        "model.num_kv_heads model.rope_theta model.norm_epsilon model.qk_norm model.tied_head"
    ),
    "what rounding costs and saves depends on the machine": "model.result_dtype",
    "a machine on which cuDNN's kernel fails takes the plain one": "model.attention_kernel",
    "every config writes its own; the settings below are inside": "topology",
    "as `topology`": (
        "topology.levels topology.levels.name topology.levels.parts topology.levels.experts"
    ),
    "a tokenizer of one's own": "data.tokenizer data.end_token data.start_token",
    "a corpus whose texts have no end, such as cut streams": "data.end_of_text",
    "how much of a text tells its domain depends on the corpus": "data.prefix_tokens",
    "how many workers there are": "data.slices",
    "DiPaCo section 2.4; the shares depend on the corpus": "routing.target_share",
    "tuned with the size of the model and the corpus": (
        "routing.prior inner.weight_decay inner.beta1 inner.beta2 inner.clip_norm"
    ),
    "what fits depends on the machine": (
        "inner.accumulation_steps inner.rematerialise inner.loss_chunks"
    ),
    "DiPaCo section 3": "outer.path_share",
    "how reliable the machines are": "outer.quorum outer.grace_seconds",
    "how long a text must be to be judged depends on the corpus": "samples.tokens",
    "what a path is divided among depends on the machine": "mesh.data mesh.fsdp mesh.tensor",
    "how fast the link to the bucket is": "retention.send_snapshots_every",
    "how far a rollback may go depends on the disk": "retention.snapshots",
}
KEPT = {name: why for why, names in KEPT_AS.items() for name in names.split()} | {
    f"mesh.rules.{axis.name}": "as `mesh.data`" for axis in dataclasses.fields(ShardingRules)
}


def test_every_setting_is_used_somewhere_or_says_why_it_is_kept():
    """A setting that nobody turns is a constant."""
    configs = [load_config(file) for file in CONFIGS.glob("*.py")]
    sweeps = [load_sweep(file) for file in (CONFIGS / "ablations").glob("*.py")]
    configs += [row for sweep in sweeps for row in sweep.values()]
    assert len(configs) > 100, "or the configs are not found"
    is_set = {
        name
        for config in configs
        for name, value in plain(settings(config)).items()
        if value != plain(ALL[name].default)
    }
    root = CONFIGS.parent
    pages = [page for page in root.glob("*/**/*.md") if page.name not in ("settings.md", "LOG.md")]
    texts = [file.read_text() for file in (root / "README.md", *pages, *CONFIGS.rglob("*.py"))]
    said = {name for text in texts for name in re.findall(r"(?<![\w.])([a-z_]+(?:\.\w+)+)=", text)}
    assert ALL.keys() - is_set - said - KEPT.keys() == set()
    assert KEPT.keys() <= ALL.keys()


def test_the_page_is_what_the_command_gives():
    given = (CONFIGS / "settings.md").read_text()
    assert given == settings_page.page(), "python tools/settings_page.py > configs/settings.md"


def test_every_setting_is_there_and_no_other():
    """The names that `--set` takes, from the values of a config."""
    named = set(settings(load_config("toy")))
    assert ALL.keys() - named == {"topology", *(name for name in ALL if "levels." in name)}
    assert named <= ALL.keys()
    rows = re.findall(r"^\| `([\w.]+)` \|", settings_page.page(), re.MULTILINE)
    assert rows == list(ALL)


def test_a_setting_has_a_sentence():
    def check(name):
        sentence = ALL[name].sentence
        assert re.fullmatch(r"[A-Z`].{15,}\.", sentence), sentence
        assert len(sentence.split()) >= 4

    assert failures(check, ALL) == {}


def test_a_number_has_its_unit():
    unit = re.compile(rf"\b({UNITS})\b", re.IGNORECASE)
    assert [name for name in NUMBERS if not unit.search(ALL[name].sentence)] == []


def test_what_comes_from_the_paper_says_from_where():
    def check(name):
        section = re.escape(FROM_THE_PAPER[name])
        assert re.search(rf"DiPaCo\b[^)]*section {section}(?!\.?\d)", ALL[name].sentence)

    assert failures(check, FROM_THE_PAPER) == {}


def test_every_group_says_what_it_is():
    for group in groups_of(RunConfig):
        assert group.sentence.endswith("."), group
        assert len(group.sentence.split()) >= 4, group


def test_a_choice_says_what_each_of_its_values_does():
    def check(name):
        for value in ALL[name].choices:
            assert f"`{value}`" in ALL[name].sentence

    choices = [name for name, each in ALL.items() if each.choices and "mesh.rules" not in name]
    assert len(choices) > 5
    assert failures(check, choices) == {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oven:
    """How bread is
    baked."""

    degrees: Annotated[int, Ge(20), Le(280), "more burns"]
    """Heat, in degrees
    Celsius."""
    minutes: Annotated[float, Gt(0)] | None = None
    fan: Literal["on", "off"] = "on"
    """Whether the fan is `on` or `off`."""
    loaves: tuple[int, ...] = ()
    """Loaves of each size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kitchen:
    """All of it."""

    oven: Oven
    flour: tuple[str, ...] = ("rye", "wheat")
    """Kinds of flour."""


def test_a_sentence_is_the_text_below_its_field_and_a_field_without_one_has_none():
    assert sentences_of(Oven) == {
        "degrees": "Heat, in degrees Celsius.",
        "fan": "Whether the fan is `on` or `off`.",
        "loaves": "Loaves of each size.",
    }
    top, oven = groups_of(Kitchen)
    assert [each.name for each in top.settings] == ["flour"]
    assert (oven.name, oven.sentence) == ("oven", "How bread is baked.")
    degrees, minutes, fan, _ = oven.settings
    assert degrees.default is REQUIRED
    assert (minutes.name, minutes.sentence) == ("oven.minutes", "")
    assert fan.choices == ("on", "off")
    assert [describe_kind(each) for each in oven.settings] == [
        "a whole number, 20 to 280 (more burns); no default",
        "a number, above 0, and finite, or None; default None",
        "one of on, off; default on",
        "whole numbers; default ()",
    ]
    assert describe_kind(top.settings[0]) == "texts; default rye,wheat"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("degrees", 19, r"20 to 280 \(more burns\)"),
        ("degrees", 281, r"20 to 280 \(more burns\)"),
        ("minutes", 0.0, "above 0, and finite, or None"),
        ("minutes", math.inf, "above 0, and finite, or None"),
        ("minutes", math.nan, "above 0, and finite, or None"),
        ("fan", "half", "one of on, off"),
    ],
)
def test_a_value_outside_its_bounds_is_named_with_what_was_expected(name, value, expected):
    oven = Oven(degrees=20)
    check_values(oven, "oven")
    check_values(dataclasses.replace(oven, degrees=280, minutes=0.5), "oven")
    with pytest.raises(BadSetting, match=rf"^`oven\.{name}` is .* Expected {expected}\.$"):
        check_values(dataclasses.replace(oven, **{name: value}), "oven")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annotated[int, Ge(0)], "0 or more"),
        (Annotated[float, Ge(0)], "0 or more, and finite"),
        (Annotated[float, Gt(0), Lt(1)], "between 0 and 1"),
        (Annotated[float, Gt(0), Le(1)], "above 0 and at most 1"),
        (Annotated[float, Ge(0), Lt(1)], "at least 0 and below 1"),
        (Annotated[int, Ge(1), Le(10_000)], "1 to 10,000"),
    ],
)
def test_bounds_are_said_in_words(kind, words):
    assert bounds_in_words(kind) == words


def test_a_name_finds_a_setting_with_or_without_its_group_or_a_whole_group():
    def names(name):
        return [each.name for group in find(RunConfig, name) for each in group.settings]

    assert names("inner.steps") == ["inner.steps"]
    assert names("batch_size") == ["inner.batch_size", "evaluation.batch_size"]
    assert names("mesh")[0] == "mesh.data"
    assert names("mesh")[-1] == "mesh.rules.feed_forward"
    assert names("topology") == ["topology", *(name for name in ALL if "topology." in name)]
    assert names("") == list(ALL)


@pytest.mark.parametrize(
    ("value", "words"),
    [(True, "true"), (None, "None"), ((), "()"), ((2, 4), "2,4"), (4e-4, "0.0004"), ("x", "x")],
)
def test_a_value_is_shown_as_it_is_set(value, words):
    assert value_in_words(value) == words


def explained(capsys, *words: str) -> str:
    assert main(["config", "show", "toy", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_setting_is_explained_with_its_type_default_value_and_sentence(capsys):
    assert explained(capsys, "--explain", "inner.steps", "--set", "inner.steps=7") == (
        f"inner.steps = 7 a whole number, 1 or more; default 150 {ALL['inner.steps'].sentence}"
    )
    said = explained(capsys, "--explain", "outer.codec")
    assert said.startswith(
        "outer.codec = none one of none, bfloat16, int8, int4, int2; default none"
    )


def test_a_group_is_explained_and_so_is_everything(capsys):
    said = explained(capsys, "--explain", "base")
    assert said.startswith("[base] The dense model that all modules start from")
    assert "base.steps = 4 a whole number, 0 or more; default 24000" in said
    assert "base.steps_per_phase = 2" in said
    assert "inner" not in said
    said = explained(capsys, "--explain")
    assert all(f"{name} " in said for name in ALL)
    said = explained(capsys, "--explain", "topology")
    assert "level early: 2 experts, owns embed, block_00 level late" in said


def test_a_name_that_no_setting_has_is_answered_with_one(capsys):
    assert main(["config", "show", "toy", "--explain", "inner.step"]) == 2
    assert "`inner.step` is not a setting. Did you mean `inner.steps`?" in capsys.readouterr().err


def test_settings_are_explained_without_a_config_too(capsys):
    assert main(["config", "show", "--explain", "inner.steps"]) == 0
    assert " ".join(capsys.readouterr().out.split()) == (
        f"inner.steps a whole number, 1 or more; default 150 {ALL['inner.steps'].sentence}"
    )
    assert main(["config", "show", "--explain", "topology"]) == 0
    assert "level early" not in capsys.readouterr().out.partition("\n\n")[0]


@pytest.mark.parametrize("more", [[], ["--json"], ["--explain", "inner", "--set", "seed=1"]])
def test_what_shows_values_wants_a_config(capsys, more):
    assert main(["config", "show", *more]) == 2
    assert "CONFIG is missing" in capsys.readouterr().err
