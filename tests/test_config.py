"""A config as a whole: checks across rooms, the plan that follows, `--set`, and config files."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from dipaco.config import BASELINES, BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.errors import (
    BadConfigFile,
    BadOverride,
    BadSetting,
    BadSweep,
    DipacoError,
    SettingsDisagree,
    UnknownSetting,
)
from dipaco.inner.config import InnerSettings
from dipaco.model.config import MeshConfig, ModelConfig
from dipaco.outer.config import OuterSettings
from dipaco.overrides import from_tree, load_config, load_sweep, override, settings
from dipaco.routing.config import RoutingConfig
from dipaco.topology import Level, Topology, blocks
from dipaco.topology.errors import BadTopology, PartUnowned, UnknownPart

PUBLISHED = Path(__file__).parents[1] / "configs" / "published.py"
CONFIG = RunConfig(
    name="small",
    model=ModelConfig(
        vocab_size=300, d_model=16, num_layers=2, num_heads=2, d_ff=32, max_length=64
    ),
    topology=Topology(
        levels=(
            Level(name="early", parts=("embed", "block_00"), experts=2),
            Level(name="late", parts=("block_01", "final_norm", "head"), experts=3),
        )
    ),
    data=DataConfig(length=64),
    phases=5,
    base=BaseSettings(steps=50, steps_per_phase=20),
    inner=InnerSettings(steps=10, batch_size=4, warmup_steps=5),
    evaluation=EvaluationSettings(every_phases=2),
)


def changed(**fields) -> RunConfig:
    return dataclasses.replace(CONFIG, **fields)


# --- checks that cross rooms --------------------------------------------------------------------


def test_the_topology_must_own_the_parts_of_the_model():
    with pytest.raises(PartUnowned, match="`block_02`"):
        changed(model=dataclasses.replace(CONFIG.model, num_layers=3))
    with pytest.raises(UnknownPart, match="`head`"):
        changed(model=dataclasses.replace(CONFIG.model, tied_head=True))


CUDNN = dataclasses.replace(CONFIG.model, compute_dtype="bfloat16", attention_kernel="cudnn")
ONE_PATH = Topology(levels=(Level(name="a", parts=("embed", *blocks(0, 1), "final_norm", "head")),))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"data": DataConfig(length=32)}, r"`data\.length` is 32; it must be"),
        ({"data": DataConfig(length=65)}, r"at most `model\.max_length` \(64\)"),
        ({"inner": InnerSettings(loss_chunks=3)}, r"`data\.length` \(64\) tokens cannot be cut"),
        (
            {"inner": InnerSettings(steps=10, warmup_steps=5), "outer": OuterSettings(delay=10)},
            r"`outer.delay` is 10, and a phase has `inner.steps` \(10\) steps",
        ),
        ({"mesh": MeshConfig(data=3)}, r"4 rows .* divided among the 3 devices of the mesh"),
        (
            {
                "model": dataclasses.replace(CUDNN, max_length=65),
                "data": DataConfig(length=65),
            },
            r"`model\.attention_kernel` is cudnn, .* even length, and `data.length` is 65",
        ),
        ({"inner": InnerSettings(steps=10, warmup_steps=50)}, "`base` takes only 50 steps"),
        (
            {"inner": InnerSettings(steps=10, warmup_steps=50), "base": BaseSettings(steps=0)},
            "`modular` takes only 50 steps",
        ),
        (
            {"routing": RoutingConfig(kind="product_kmeans"), "topology": ONE_PATH},
            "product_kmeans, but the topology offers no choice: use kmeans",
        ),
        (
            {"routing": RoutingConfig(kind="small_models"), "topology": ONE_PATH},
            "small_models, but the topology offers no choice: use kmeans",
        ),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together_are_named_with_their_values(fields, problem):
    with pytest.raises(SettingsDisagree, match=problem):
        changed(**fields)


OUT_OF_RANGE = f"""
phases=0 seed=-1 seed={2**63} base.steps=-1 base.steps_per_phase=0 baselines=["sparse"]
evaluation.every_phases=0 evaluation.batch_size=0 evaluation.max_documents=0
inner.steps=0 inner.accumulation_steps=0 inner.accumulation_steps=3 inner.warmup_steps=-1
inner.learning_rate=0 inner.learning_rate=-1 inner.clip_norm=0 inner.weight_decay=-0.1
inner.beta1=1.0 inner.beta2=1.5 outer.learning_rate=0 outer.momentum=1.0 outer.quorum=0
outer.quorum=1.5 outer.grace_seconds=-1 outer.grace_seconds=inf outer.delay=-1
outer.delay_merge=1.0 outer.delay_merge=-0.1 outer.momentum=-0.1 outer.vocabulary_rows=tokens
routing.kind=knn routing.normalise=whiten routing.capacity=0.9 routing.floor=1.5 routing.rule=luck
routing.shortlist=0 routing.prior=-1 reroute.steps=0 reroute.learning_rate=0
"""


@pytest.mark.parametrize("text", OUT_OF_RANGE.split())
def test_a_value_out_of_range_is_refused_by_name(text):
    with pytest.raises(BadSetting, match=rf"`{text.partition('=')[0]}` is "):
        override(CONFIG, [text])


# --- the plan -----------------------------------------------------------------------------------


def test_the_plan_is_the_base_model_the_modular_one_and_the_baselines():
    plan = changed(baselines=BASELINES).plan
    assert [arm.name for arm in (plan.base, *plan.arms)] == ["base", "modular", *BASELINES]
    assert [arm.name for arm in plan.arms if arm.has_outer_steps] == ["modular"]
    assert [arm.name for arm in plan.arms if arm.is_routed] == ["modular"]
    assert plan.arm("modular").topology == CONFIG.topology
    assert [arm.name for arm in changed(baselines=()).plan.arms] == ["modular"]


def test_the_dense_arms_take_the_steps_of_a_path_and_of_all_paths_together():
    arms = changed(baselines=BASELINES).plan.arms
    steps = {arm.name: arm.total_steps for arm in arms}
    assert steps == {
        "modular": 50, "dense": 50, "data_parallel": 50, "dense_equal_tokens": 50 * 6,
    }  # fmt: skip
    assert {arm.name: (arm.topology.num_paths, len(arm.topology.modules)) for arm in arms} == {
        "modular": (6, 5), "dense": (1, 1), "data_parallel": (6, 1), "dense_equal_tokens": (1, 1),
    }  # fmt: skip


@pytest.mark.parametrize(("share", "machines"), [(1.0, 6), (0.5, 3), (0.1, 1)])
def test_as_many_machines_are_in_lock_step_as_paths_take_part_in_a_phase(share, machines):
    outer = OuterSettings(path_share=share)
    plan = changed(outer=outer, baselines=("data_parallel",)).plan
    modular, lock_step = plan.arm("modular"), plan.arm("data_parallel")
    assert lock_step.topology.num_paths == machines
    assert lock_step.path_steps == modular.path_steps


def test_arms_are_compared_at_the_same_number_of_points():
    points = {
        arm.name: [phase for phase in range(arm.phases + 1) if arm.is_evaluated(phase)]
        for arm in CONFIG.plan.arms
    }
    assert points["modular"] == points["dense"] == [2, 4, 5]
    assert points["dense_equal_tokens"] == [12, 24, 30]


def test_the_base_model_takes_exactly_its_steps_in_phases_of_about_the_asked_size():
    base = CONFIG.plan.base
    assert (base.phases, base.total_steps) == (3, 50)
    assert [base.steps_before(phase) for phase in range(4)] == [0, 16, 33, 50]


def test_a_plan_of_any_number_of_phases_is_made_at_once():
    """Also with path sampling, where each phase draws its paths."""
    for share, at_once in ((1.0, 6), (0.5, 3)):
        config = changed(phases=10**12, outer=OuterSettings(path_share=share))
        assert config.plan.arm("dense_equal_tokens").phases == at_once * 10**12
        assert config.plan.arm("modular").path_steps == at_once * 10 * 10**12


# --- JSON ---------------------------------------------------------------------------------------


def test_a_config_comes_back_from_json():
    assert from_tree(json.loads(CONFIG.to_json())) == CONFIG


def test_json_names_every_setting():
    tree = json.loads(CONFIG.to_json())
    assert tree["inner"]["steps"] == 10
    assert tree["topology"]["levels"][1]["parts"] == ["block_01", "final_norm", "head"]
    assert settings(CONFIG)["routing.capacity"] == RoutingConfig().capacity


# --- --set --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        ("inner.steps=50", lambda c: c.inner.steps, 50),
        ("inner.learning_rate=3e-3", lambda c: c.inner.learning_rate, 3e-3),
        ("outer.learning_rate=1", lambda c: c.outer.learning_rate, 1.0),
        ("outer.rescale_by_fan_in=false", lambda c: c.outer.rescale_by_fan_in, False),
        ("evaluation.max_documents=None", lambda c: c.evaluation.max_documents, None),
        ("evaluation.max_documents=null", lambda c: c.evaluation.max_documents, None),
        ("evaluation.max_documents=7", lambda c: c.evaluation.max_documents, 7),
        ("data.sources=text:a,jsonl:b", lambda c: c.data.sources, ("text:a", "jsonl:b")),
        ('data.sources=["text:a,b"]', lambda c: c.data.sources, ("text:a,b",)),
        ("data.sources=text:a=b", lambda c: c.data.sources, ("text:a=b",)),
        ("data.tokenizer=some/file.json", lambda c: c.data.tokenizer, "some/file.json"),
        ("baselines=dense", lambda c: c.baselines, ("dense",)),
        ("baselines=[]", lambda c: c.baselines, ()),
        *((f"baselines={none}", lambda c: c.baselines, ()) for none in ("", "()", "none")),
        ("data.tokenizer=none", lambda c: c.data.tokenizer, None),
        ("inner.learning_rate=.003", lambda c: c.inner.learning_rate, 3e-3),
        ("outer.learning_rate=1.", lambda c: c.outer.learning_rate, 1.0),
        ("report.link_megabits=.5,+1", lambda c: c.report.link_megabits, (0.5, 1.0)),
        ("seed=+3", lambda c: c.seed, 3),
        ("model.qk_norm=True", lambda c: c.model.qk_norm, True),
        ("name=2024", lambda c: c.name, "2024"),
        ("name=None", lambda c: c.name, "None"),
        (" seed = 3 ", lambda c: c.seed, 3),
        ("mesh.data=-1", lambda c: c.mesh.data, -1),
        ("mesh.rules.batch=data", lambda c: c.mesh.rules.batch, ("data",)),
    ],
)
def test_a_setting_is_changed_by_its_name_and_nothing_else_is(text, read, expected):
    config = override(CONFIG, [text])
    assert read(config) == expected
    assert type(read(config)) is type(expected)
    name = text.partition("=")[0].strip()
    assert settings(config) | {name: 0} == settings(CONFIG) | {name: 0}


def test_settings_that_must_agree_can_change_together_in_any_order():
    for texts in (
        ["model.d_model=18", "model.num_heads=3"],
        ["model.num_heads=3", "model.d_model=18"],
    ):
        assert override(CONFIG, texts).model.head_size == 6
        with pytest.raises(BadSetting):
            override(CONFIG, texts[:1])


def test_the_last_of_two_wins_and_one_needs_no_list():
    assert override(CONFIG, ["seed=1", "seed=2"]).seed == 2
    assert override(CONFIG, "inner.steps=7").inner.steps == 7


def test_a_topology_can_be_given_whole():
    levels = '[{"name": "all", "parts": ["embed", "block_00", "block_01", "final_norm", "head"]}]'
    assert override(CONFIG, [f"topology.levels={levels}"]).num_paths == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("quickstart", "2x2"), ("toy", "2x2"), ("paper_2x4", "2x4"), ("paper_8x8", "8x8")],
)
def test_a_grid_from_the_command_line_is_cut_as_those_that_are_shipped(name, text):
    shipped = load_config(name)
    other = override(shipped, ["topology=3x1"])
    assert other.topology != shipped.topology
    assert override(other, [f"topology={text}"]) == shipped


def test_a_grid_is_of_the_model_that_is_set_beside_it():
    for texts in (
        ["topology=2x3x2", "model.num_layers=6"],
        ["model.num_layers=6", "topology=2x3x2"],
    ):
        config = override(CONFIG, texts)
        assert (config.num_paths, len(config.topology.modules)) == (12, 7)
        assert config.topology.levels[1].parts == ("block_02", "block_03")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("topology=2*3", r"`topology` is '2\*3'\. Expected a grid .* as in topology=2x3 "),
        ("topology=0x2", "Expected a grid"),
        ("topology=", "Expected a grid"),
        ("topology=1000x1000", "at most 100,000 paths"),
        ("topology=2x2x2", r"at most 2 levels, since the model has 2 blocks \(`model\.num_layers`"),
        ("topology.levels=3", "`topology.levels` is '3'. Expected a grid .* as in topology=2x3 "),
        ("topology.levels=2x3", "written in a config file: `dipaco config copy quickstart my.py`"),
        ("topology.levels.experts=3", "as in topology=2x3 "),
    ],
)
def test_what_is_no_grid_is_answered_with_what_can_be_written(text, problem):
    with pytest.raises(BadSetting, match=problem):
        override(CONFIG, [text])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("inner.step=50", r"`inner\.step` is not a setting\. Did you mean `inner\.steps`\?"),
        ("iner.steps=50", r"Did you mean `inner\.steps`\?"),
        ("learning_rate=1", r"`inner\.learning_rate` or `outer\.learning_rate`"),
        ("phase=3", r"Did you mean `phases`\?"),
        ("inner.steps.more=1", r"`inner\.steps\.more` is not a setting\. Did you mean"),
        ("mesh.rules.batches=data", r"Did you mean `mesh\.rules\.batch`\?"),
        ("zebra=1", "`dipaco config show CONFIG` lists them all"),
        ("inner=1", r"It is a group; set one of inner\.optimizer, inner\.steps"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(text, hint):
    with pytest.raises(UnknownSetting, match=hint):
        override(CONFIG, [text])


def test_a_source_without_a_kind_is_answered_with_what_to_write():
    for given, meant in {
        "notes/**/*.txt": "text:notes/**/*.txt",
        "['text:one.txt']": "text:one.txt",
        "[text:one.txt]": "text:one.txt",
        "txt:notes": "text:notes",
        "jsonl": "text:jsonl",
    }.items():
        with pytest.raises(BadSetting) as refused:
            override(CONFIG, [f"data.sources={given}"])
        assert f"Write for example `--set data.sources={shlex.quote(meant)}`" in str(refused.value)


WRONG_TYPES = {
    "Expected a whole number": "inner.steps=many inner.steps=1.5 inner.steps= inner.steps=true "
    "inner.steps=True inner.steps=.5",
    "Expected a number": "inner.learning_rate=. inner.learning_rate=fast inner.learning_rate=NaN "
    "inner.learning_rate=-Infinity",
    r"Expected a token's name, None \(the": "data.start_token=none",
    r"Expected a token's name, or None \(the": "data.end_token=none",
    "Expected true or false": "outer.rescale_by_fan_in=maybe outer.rescale_by_fan_in=1",
    "Expected a whole number, or None": "evaluation.max_documents=few",
}


@pytest.mark.parametrize("expected", WRONG_TYPES)
def test_a_wrong_type_is_answered_with_the_right_one(expected):
    for text in WRONG_TYPES[expected].split():
        name, _, value = text.partition("=")
        with pytest.raises(BadSetting, match=rf"`{name}` is '{value}'\. {expected}"):
            override(CONFIG, [text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"inner.steps={'9' * 5000}", "a whole number"),  # more digits than Python reads
        (f"inner.steps={'9' * 4000}", r"at most 2\^63 - 1 in size"),
        (f"seed=-{'9' * 20}", r"at most 2\^63 - 1 in size"),
        (f"inner.learning_rate={'9' * 5000}", "above 0, and finite"),
        ("inner.steps=1e999999999", "a whole number"),
        ("model.num_layers=99999999999999", "1 to 10,000"),
    ],
    ids=lambda text: text[:30],
)
def test_absurd_numbers_are_refused_with_a_sentence(text, expected):
    with pytest.raises(BadSetting, match=f"Expected {expected}"):
        override(CONFIG, [text])


@pytest.mark.parametrize("text", ["inner.steps", "=3", ""])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(BadOverride, match="NAME=VALUE"):
        override(CONFIG, [text])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("model.num_heads=3", BadSetting),
        ("model.vocab_size=10", BadSetting),
        ("routing.kind=nearest", BadSetting),
        ("topology.levels=[]", BadTopology),
        ('topology.levels=[{"name": "A", "parts": ["embed"]}]', BadTopology),
        ('topology.levels=[{"parts": ["embed"]}]', BadSetting),
    ],
)
def test_an_error_of_a_room_keeps_its_own_words(text, error):
    with pytest.raises(error):
        override(CONFIG, [text])


# --- config files -------------------------------------------------------------------------------

FILE = """
from dipaco.config import RunConfig
from dipaco.model.config import MeshConfig, ModelConfig
from dipaco.store.retention import RetentionSettings
from dipaco.topology import Level, Topology
def run():
    return RunConfig(
        name="{name}",
        phases=200,
        model=ModelConfig(
            vocab_size=2048, d_model=8, num_layers=1, num_heads=1, d_ff=8, max_length=128
        ),
        topology=Topology(
            levels=(Level(name="all", parts=("embed", "block_00", "final_norm", "head")),)
        ),
    )
"""
VARIANT = """
import dataclasses, base
def run():
    return dataclasses.replace(base.run(), phases=300)
"""


def test_a_config_file_is_a_function_and_settings_change_it(tmp_path):
    (tmp_path / "base.py").write_text(FILE.format(name="one"))
    config = load_config(tmp_path / "base.py", ["seed=4"])
    assert (config.name, config.phases, config.seed) == ("one", 200, 4)


def test_a_variant_imports_the_config_beside_it_and_no_other_of_that_name(tmp_path, monkeypatch):
    """From relative folders too, which is how people name them."""
    monkeypatch.chdir(tmp_path)
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "base.py").write_text(FILE.format(name=folder))
        (tmp_path / folder / "variant.py").write_text(VARIANT)
    for root in (Path(), tmp_path):
        for folder in ("here", "there"):
            config = load_config(root / folder / "variant.py")
            assert (config.name, config.phases) == (folder, 300)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no such file"),
        ("def run(", "SyntaxError"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named"),
        ("def run(): return 1 / 0", "ZeroDivisionError: division by zero"),
        ("x = 1", r"it has no function `run\(\) -> RunConfig`"),
        ("run = 3", r"it has no function `run\(\) -> RunConfig`"),
        ("def run(): return {}", r"`run\(\)` returned dict, not RunConfig"),
        ("def run(needed): return needed", "TypeError"),
    ],
)
def test_a_file_that_is_no_config_is_refused_with_the_reason(tmp_path, content, problem):
    file = tmp_path / "odd.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadConfigFile, match=rf"odd\.py cannot be used: {problem}"):
        load_config(file)


def test_a_setting_that_a_config_file_has_wrong_keeps_its_own_words(tmp_path):
    (tmp_path / "c.py").write_text(FILE.format(name="x").replace("phases=200", "phases=0"))
    with pytest.raises(BadSetting, match=r"`phases` is 0\. Expected 1 or more"):
        load_config(tmp_path / "c.py")


EDITED = """
import dataclasses, base
of = dataclasses.replace
def {function}():
    c = base.run()
    return {value}
"""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "of(c, inner=of(c.inner, steps=30.0))",
            r"`inner\.steps` is 30\.0\. Expected a whole number",
        ),
        ("of(c, seed=1.5)", r"`seed` is 1\.5\. Expected a whole number"),
        ("of(c, name=None)", "`name` is None. Expected text"),
        ("of(c, phases='3')", r"`phases` is '3'\. Expected a whole number\. See my\.py, line 6\."),
        (
            "of(c, inner=of(c.inner, learning_rate='3e-3'))",
            r"`inner\.learning_rate` is '3e-3'\. Expected a number\. See my\.py, line 6\.",
        ),
        ("of(c, topology='2x2')", r"`topology` is '2x2'\. Expected an instance of `Topology`"),
        ("of(c, inner=None)", "`inner` is None. Expected an instance of `InnerSettings`"),
        (
            "of(c, topology=of(c.topology, levels=(of(c.topology.levels[0], experts=1.0),)))",
            r"`topology\.levels\[0\]\.experts` is 1\.0\. Expected a whole number",
        ),
        (
            "of(c, data=of(c.data, sources='text:notes/a'))",
            r"`data\.sources` is 'text:notes/a'\. Expected a tuple of them",
        ),
        ("of(c, baselines='dense')", "`baselines` is 'dense'. Expected a tuple, as in"),
    ],
)
def test_a_value_of_the_wrong_type_is_said_with_its_setting(tmp_path, value, said):
    (tmp_path / "base.py").write_text(FILE.format(name="one"))
    (tmp_path / "my.py").write_text(EDITED.format(function="run", value=value))
    with pytest.raises(BadSetting, match=said):
        load_config(tmp_path / "my.py")
    (tmp_path / "my.py").write_text(EDITED.format(function="sweep", value=f"{{'row': {value}}}"))
    with pytest.raises(DipacoError, match=said) as caught:
        load_sweep(tmp_path / "my.py")
    if isinstance(caught.value, BadSweep):  # it is a mistake in the file, and the rows are made
        assert "its row `row`:" in str(caught.value)


def test_a_list_may_stand_for_a_tuple_and_a_whole_number_for_another(tmp_path):
    value = "of(c, data=of(c.data, sources=['text:a']), outer=of(c.outer, learning_rate=1))"
    (tmp_path / "base.py").write_text(FILE.format(name="one"))
    (tmp_path / "my.py").write_text(EDITED.format(function="run", value=value))
    config = load_config(tmp_path / "my.py")
    assert config.data.sources == ("text:a",)
    assert type(config.outer.learning_rate) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("c.replac(phases=3)", r"no attribute 'replac' \(my\.py, line 6\)\.$"),
        ("base.other()", r"no attribute 'other' \(my\.py, line 6\)\.$"),
        ("base.fails()", r"ZeroDivisionError: division by zero \(base\.py, line 18\)\.$"),
        ("3 +* 4", r"invalid syntax \(my\.py, line 6\)\.$"),
    ],
)
def test_a_mistake_in_a_config_file_is_said_with_its_line(tmp_path, value, said):
    fails = "def fails():\n    return 1 / 0\n"
    (tmp_path / "base.py").write_text(FILE.format(name="one") + fails)
    (tmp_path / "my.py").write_text(EDITED.format(function="run", value=value))
    with pytest.raises(BadConfigFile, match=said):
        load_config(tmp_path / "my.py")


def test_outer_and_inner_defaults_are_the_papers():
    assert (OuterSettings().learning_rate, OuterSettings().momentum) == (0.7, 0.9)
    inner = InnerSettings()
    assert (inner.steps, inner.learning_rate, inner.weight_decay) == (150, 4e-4, 0.1)
    assert (inner.warmup_steps, inner.batch_size, inner.clip_norm) == (1000, 512, 1.0)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("routing.target_share=0.5,0.4", "these sum to 0.9"),
        ("routing.target_share=0.25,0.25,0.25,0.25", "`routing.alternations` are not"),
        ("routing.capacity=1e999", "1 or more, and finite, or None"),
        ("inner.learning_rate=1e999", "above 0, and finite"),
        ("routing.target_share=[1.5,-0.5,0.5,-0.5]", "above 0 for every path"),
        ("routing.alternations=0,1", "from 1"),
        ("routing.alternations=2,1", "ascending order"),
        ("routing.alternations=99", "there are 5 phases"),
        ("routing.overlap=0", "1 or more"),
        ("routing.overlap=5", "there are 4 paths"),
        ("outer.path_share=0", "above 0 and at most 1"),
        ("inner.hold_out=1", "below 1"),
        ("reroute.every=0,16", "1 or more"),
        ("reroute.every=32,16", "ascending order"),
        ("reroute.window=0", "1 or more, or None"),
    ],
)
def test_settings_of_the_published_algorithm_are_refused_with_a_sentence(setting, problem):
    with pytest.raises(DipacoError, match=problem):
        load_config(PUBLISHED, [setting])


def test_a_target_share_is_of_as_many_paths_as_there_are():
    with pytest.raises(SettingsDisagree, match="has 2 shares, and there are 4 paths"):
        load_config(PUBLISHED, ["routing.alternations=1", "routing.target_share=0.5,0.5"])


def test_what_only_some_rows_of_a_sweep_use_is_set_for_all_of_them():
    """Rows that are routed by features compare no paths."""
    rows = load_sweep(PUBLISHED.parent / "ablations" / "reproduction.py", ["routing.prior=1"])
    assert any(row.outer.synchronous for row in rows.values())
    assert any(row.routing.alternations for row in rows.values())


def test_every_plain_contender_moves_by_the_mean_in_one_row_and_by_the_root_in_another():
    rows = load_sweep(PUBLISHED.parent / "ablations" / "reproduction.py", [])
    pairs = {name: name.replace(" mean", " root") for name in rows if name.endswith(" mean")}
    pairs |= {"diloco 4": "diloco 4 root", "2x2 mean": "2x2", "2x2 private mean": "2x2 private"}
    pairs |= {name: name.replace(" plain mean", " plain") for name in rows if "plain mean" in name}
    assert {"diloco 4 by row mean", "2x2 by row mean", "2x2 private plain mean"} < pairs.keys()
    for mean, root in pairs.items():
        outer = dataclasses.replace(rows[mean].outer, rescale_by_fan_in=True)
        assert rows[mean].outer != outer, mean
        assert dataclasses.replace(rows[mean], outer=outer) == rows[root], root


def test_settings_of_the_published_algorithm_are_set_by_name():
    config = load_config(
        PUBLISHED,
        [
            *("routing.alternations=1,3", "routing.overlap=2", "outer.path_share=0.5"),
            *("routing.target_share=0.4,0.3,0.2,0.1", "inner.hold_out=0.05"),
            *("reroute.every=16,32,64", "reroute.window=64"),
        ],
    )
    assert config.routing.alternations == (1, 3)
    assert config.routing.target_share == (0.4, 0.3, 0.2, 0.1)
    assert config.reroute.every == (16, 32, 64)
    arm = config.plan.arm("modular")
    assert (arm.alternations, arm.path_share, arm.hold_out) == ((1, 3), 0.5, 0.05)
    assert config.plan.reroutes
    assert config.plan.arm("dense_equal_tokens").phases == 5 * 2


def test_a_single_alternation_is_a_list_of_one():
    assert load_config(PUBLISHED, ["routing.alternations=2"]).routing.alternations == (2,)
