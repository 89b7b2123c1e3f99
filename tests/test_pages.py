"""The pages say what is there: commands parse, files and links exist, each verb has one home.

A verb is *described* where a heading or the first cell of a table row begins with it in code, as in
"| `dipaco drain --run RUN` | ...". Code blocks and other mentions are free.
"""

import argparse
import functools
import itertools
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from dipaco.cli.main import parser
from dipaco.config import RunConfig
from dipaco.overrides import load_sweep
from dipaco.settings import groups_of
from dipaco.sweeps.errors import NoSuchRow
from dipaco.sweeps.trials import named as rows_named
from tests.support.failures import failures

ROOT = Path(__file__).parent.parent
FRONT_PAGE = ROOT / "README.md"
ROOMS = ("dipaco", "configs", "tests", "tools")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *itertools.chain(*((ROOT / room).rglob("*.md") for room in (".github", *ROOMS))),
    ]
)
LOG = ROOT / "tools" / "LOG.md"  # its commands, settings and tools are those of another day
GENERATED = ROOT / "configs" / "settings.md"
SWEEPS = sorted((ROOT / "configs" / "ablations").glob("*.py"))
MOST_WORDS = 1200
MOST_WORDS_BY_HAND = 20_000
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def code_blocks(text: str) -> Iterator[str]:
    """Fenced blocks, and lines indented by four after an empty one."""
    yield from (block.partition("\n")[2].removesuffix("```") for block in FENCED.findall(text))
    rest = FENCED.sub("", text)
    yield from re.findall(r"(?<=\n\n)(?:(?:    .*)?\n)+", rest + "\n")


def inline_code(text: str) -> list[str]:
    rest = re.sub(r"(?<=\n\n)(?:(?:    .*)?\n)+", "\n", FENCED.sub("", text))
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]


def block_lines(text: str) -> Iterator[str]:
    for block in code_blocks(text):
        yield from block.replace("\\\n", " ").splitlines()


def commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, in words: without comment, variables, `do`, and what is behind a
    pipe. `[--json]` is given both with and without; `pause | resume` is two commands.
    """
    line = re.sub(r"(^|\s)#\s.*", "", line)
    either = re.search(r"\b(\w+(?: \| \w+)+)(?= --)", line)
    for choice in either[1].split(" | ") if either else [""]:
        one = line.replace(either[1], choice) if either else line
        for form in {re.sub(r"\[(--[^]]*)\]", r"\1", one), re.sub(r"\[--[^]]*\]", "", one)}:
            try:
                lexer = shlex.shlex(form, posix=True, punctuation_chars=";&|")
                lexer.whitespace_split, lexer.commenters = True, ""
                words = list(lexer)
            except ValueError:  # not a command: a quotation mark that stands by itself
                continue
            for is_end, group in itertools.groupby(words, lambda word: set(word) <= set(";&|")):
                command = list(group)
                while command and (command[0] == "do" or re.match(r"\w+=", command[0])):
                    command = command[1:]
                if not is_end and command:
                    yield command


def commands_of(lines: Iterable[str], program: str) -> Iterator[list[str]]:
    """What follows the name of a program, where it is the first word."""
    for line in lines:
        for word, *rest in commands(line):
            if word.rpartition("/")[2] == program:
                yield rest


class Unparsed(Exception):
    pass


def strict_parser() -> argparse.ArgumentParser:
    """The command line's own parser, which raises where the other would end the process."""

    def refuse(message: str) -> None:
        raise Unparsed(message)

    strict = parser()
    for each in all_parsers(strict):
        each.error = refuse  # ty: ignore[invalid-assignment]
    return strict


def children(each: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Verbs of a parser."""
    found = [a for a in each._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def all_parsers(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, its verbs, and theirs."""
    yield top
    for verb in children(top).values():
        yield from all_parsers(verb)


def verbs() -> list[str]:
    """`train`, ..., and those of `swarm` and `config` with theirs."""
    return [
        f"{name} {below}".strip()
        for name, verb in children(parser()).items()
        for below in children(verb) or [""]
    ]


def bad_commands(page: Path, text: str) -> Iterator[str]:
    """A capital letter stands for a number; a mention may leave out what is required."""
    strict = strict_parser()
    for lines, is_mention in ((block_lines(text), False), (inline_code(text), True)):
        for words in commands_of(lines, "dipaco"):
            if words == ["--version"]:  # the parser prints it and ends
                continue
            numbered = [re.sub(r"^[A-Z]$", "1", word) for word in words if word != "--help"]
            try:
                strict.parse_args(numbered)
            except Unparsed as problem:
                if not (is_mention and "arguments are required" in str(problem)):
                    yield f"`dipaco {shlex.join(words)}`: {problem}"


def bad_files(page: Path, text: str) -> Iterator[str]:
    """Files of this repository that code names: from the root, the house or the page's folder."""
    named = {
        word
        for line in (*block_lines(text), *inline_code(text))
        for word in re.findall(r"(?<![\w/.*~-])[\w./*-]+", line)
        if re.match(rf"({'|'.join(ROOMS)})/", word) or re.search(r"\w\.(py|sql)$", word)
    }
    for name in sorted(named):
        folders = (ROOT, ROOT / "dipaco", page.parent)
        if not any(any(folder.glob(name.rstrip("/."))) for folder in folders):
            yield f"`{name}` is not there"


def bad_names(page: Path, text: str) -> Iterator[str]:
    """Classes of the house, and "`name` in `file.py`"."""
    house = "".join(file.read_text() for file in (ROOT / "dipaco").rglob("*.py"))
    for span in inline_code(text):
        name = re.match(r"([A-Z][a-z]+[A-Z]\w+)(:|$)", span)
        if name and not re.search(rf"\bclass {name[1]}\b", house):
            yield f"there is no class `{name[1]}`"
    for name, file in re.findall(r"`(\w+)` in `([\w/]+\.py)`", text):
        found = [folder / file for folder in (ROOT, ROOT / "dipaco") if (folder / file).is_file()]
        if found and not re.search(rf"^(def |class |)({name})\b", found[0].read_text(), re.M):
            yield f"`{file}` has no `{name}`"


@functools.cache
def sources_of_tools() -> dict[str, str]:
    return {str(file.relative_to(ROOT)): file.read_text() for file in ROOT.glob("tools/**/*.py")}


@functools.cache
def rows_of_sweeps() -> set[str]:
    return {row for file in SWEEPS for row in load_sweep(file)}


def bad_options(page: Path, text: str) -> Iterator[str]:
    """Options of `python tools/...`, and those named alone, which are any verb's or any tool's."""
    tools = sources_of_tools()
    shared = "".join(source for name, source in tools.items() if name.count("/") > 1)
    of_verbs = {option for each in all_parsers(parser()) for option in each._option_string_actions}
    for tool, *words in commands_of([*block_lines(text), *inline_code(text)], "python"):
        for option in (word for word in words if word.startswith("--")):
            if tool in tools and f'"{option}"' not in tools[tool] + shared:
                yield f"`python {tool}` has no option `{option}`"
    for span in inline_code(text):
        # `--xla_…` are XLA's, in `XLA_FLAGS`.
        for option in re.findall(r"(?<!\S)--(?!xla_)[\w-]+", span) if span.startswith("--") else []:
            if option not in of_verbs and f'"{option}"' not in "".join(tools.values()):
                yield f"there is no option `{option}`"


def bad_settings(page: Path, text: str) -> Iterator[str]:
    """Settings by their whole name, and rows that a sweep is asked to run."""
    groups = list(groups_of(RunConfig))
    known = {named.name for group in groups for named in (group, *group.settings)}
    rooms = {name.partition(".")[0] for name in known if "." in name}
    rows = rows_of_sweeps()
    for line in (*block_lines(text), *inline_code(text)):
        for name in re.findall(r"(?<![\w/.-])[a-z]+\.[a-z_.0-9]+(?==|$)", line):
            if name.endswith((".md", ".json", ".png")):
                continue  # the report's files
            if name.partition(".")[0] in rooms and name not in known and "/" not in line:
                yield f"`{name}` is not a setting"
        for row in re.findall(r'"([^"]+)"', line.partition("--only ")[2]):
            try:
                rows_named("", rows, [row])
            except NoSuchRow:
                yield f"no sweep has a row `{row}`"


def anchors(text: str) -> set[str]:
    """What a `#` of a link may name, as GitHub makes it of headings."""
    counts: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCED.sub("", text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return found


def bad_links(page: Path, text: str) -> Iterator[str]:
    rest = re.sub(r"`[^`]*`", lambda span: span[0].replace("](", "] ("), FENCED.sub("", text))
    for target in re.findall(r"\]\(([^)\s]+)\)", rest):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if file != page and not file.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and anchor not in anchors(text if file == page else file.read_text()):
            yield f"{name or 'this page'} has no heading #{anchor}"


def described(text: str) -> list[str]:
    """Verbs that a page describes; `config show` and the like by two words."""
    lines = re.findall(r"^(?:#+|\|) *`dipaco ([^`]+)`", FENCED.sub("", text), re.MULTILINE)
    known = sorted(verbs(), key=len, reverse=True)
    return [
        next((verb for verb in known if f"{line} ".startswith(f"{verb} ")), line) for line in lines
    ]


FAULTS = {
    "killed while it writes an object, a snapshot or a row",
    *("database server killed", "reducer killed while it adds up"),
    "donor killed in the middle of a download",
    *(f"network {how}" for how in ("half-open", "one-way", "partitioned", "flapping")),
    "zombie that comes back after its lease",
    *("wall clock of a worker", "wall clock of the server"),
    *("contribution with a NaN", "huge contribution", "truncated contribution"),
    *("replayed contribution", "byte flipped at rest", "disk full", "disk slow"),
    *("scheduler killed", "launcher killed", "two launchers", "stale router", "wrong version"),
    *("poison task", "sick machine", "all processes gone", "checker changed"),
}


def bad_faults(page: Path, text: str) -> Iterator[str]:
    """The table of faults and tests has every fault, no empty cell, and tests that
    are there, named as pytest does.
    """
    table = re.search(r"^\| fault \| test \|.*\n\| :.*\n((?:\|.*\n?)*)", text, re.MULTILINE)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (table[1].splitlines() if table else [])
    ]
    for fault, *cells in rows:
        if len(cells) != 2 or not all(cells):
            yield f"{fault} has an empty cell"
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", cells[0] if cells else "")
        if not named:
            yield f"{fault} has no test"
        for file, test in named:
            there = ROOT / "tests" / file
            if not there.is_file() or f"def {test}(" not in there.read_text():
                yield f"there is no `{file}::{test}`"
    if rows:
        yield from sorted(f"{fault} is missing" for fault in FAULTS - {row[0] for row in rows})


TIMELESS = ("every link leads somewhere",)
RULES: dict[str, Callable[[Path, str], Iterator[str]]] = {
    "every command parses": bad_commands,
    "every file is there": bad_files,
    "every name is there": bad_names,
    "every option is there": bad_options,
    "every setting and row has that name": bad_settings,
    "every link leads somewhere": bad_links,
    "every fault has its test": bad_faults,
}


@pytest.mark.parametrize("rule", RULES)
def test_on_every_page(rule):
    pages = [page for page in PAGES if page != LOG or rule in TIMELESS]
    assert failures(lambda page: list(RULES[rule](page, page.read_text())), pages) == {}


@pytest.mark.parametrize(
    ("rule", "text", "problem"),
    [
        ("every command parses", "Say `dipaco drain`, or `dipaco dance --run RUN`.", "dance"),
        ("every command parses", "\n\n    dipaco pause | rest --run RUN      # both\n", "rest"),
        ("every command parses", "```\nA=1 x/dipaco train C --run R [--fast]\n```", "--fast"),
        ("every file is there", "Read `dipaco/trees.py` and `outer/gradients.py`.", "gradients"),
        ("every file is there", "\n\n    pytest tests/outer tests/inter\n", "tests/inter"),
        ("every name is there", "`DiskFull: no space` and `DiskEmpty`", "DiskEmpty"),
        ("every name is there", "`path_weight` in `outer/gradient.py`", "path_weight"),
        ("every option is there", "`python tools/lockstep.py T --plod F`", "--plod"),
        ("every option is there", "`--megabits 3`, `--megabytes` and `--megabats 3`", "--megabats"),
        ("every setting and row has that name", "`inner.steps=3` or `inner.step=3`", "inner.step`"),
        ("every setting and row has that name", '`--only "diloco 4" "diloco 3"`', "diloco 3"),
        ("every link leads somewhere", "[this](../dipaco/trees.py) ![that](no.png)", "no.png"),
        ("every link leads somewhere", "# `a` and B\n[it](#a-and-b) [not](#a-or-b)", "#a-or-b"),
    ],
)
def test_a_page_that_breaks_a_rule_is_seen(rule, text, problem):
    (found,) = RULES[rule](ROOT / "tests" / "README.md", text)
    assert problem in found


def test_the_fault_table_is_there_and_a_row_that_breaks_its_rule_is_seen():
    page = ROOT / "tests" / "README.md"
    text = page.read_text()
    (row,) = re.findall(r"^\| disk slow \|.*\n", text, re.MULTILINE)
    assert list(bad_faults(page, text)) == []
    *cells, proof, _ = row.split("|")
    for other, problem in (
        ("", "disk slow is missing"),
        (row.replace(proof, " "), "disk slow has an empty cell"),
        ("|".join(cells) + "|\n", "disk slow has an empty cell"),
        (
            row.replace("::test_a_", "::test_the_"),
            "there is no `workers/test_slow_disk.py::test_the",
        ),
        (re.sub(r"`[^`]*::[^`]*`", "some", row), "disk slow has no test"),
    ):
        (found,) = bad_faults(page, text.replace(row, other))
        assert problem in found


def test_the_front_page_is_short():
    assert len(FRONT_PAGE.read_text().split()) <= MOST_WORDS


def test_all_pages_by_hand_are_short():
    by_hand = [page for page in PAGES if page not in (LOG, GENERATED)]
    assert sum(len(page.read_text().split()) for page in by_hand) <= MOST_WORDS_BY_HAND


def test_the_front_page_leads_to_every_other_or_to_the_one_above_it():
    """Further pages of a room are reached from the room's README.md."""
    from_front = linked_from(FRONT_PAGE)
    further = set(PAGES) - {FRONT_PAGE} - from_front
    assert from_front < set(PAGES)
    assert {page.parent / "README.md" for page in further} <= from_front
    for page in further:
        assert page in linked_from(page.parent / "README.md")


def linked_from(page):
    links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
    return {(page.parent / link).resolve() for link in links}


def test_each_verb_is_described_once():
    homes = [verb for page in PAGES for verb in described(page.read_text())]
    assert sorted(homes) == sorted(verbs())


def test_what_describes_a_verb_is_a_heading_or_a_row():
    text = (
        "# `dipaco swarm join A`\n| `dipaco drain` | x |\n`dipaco scale`\n```\n# `dipaco x`\n```\n"
    )
    assert described(text) == ["swarm join", "drain"]


def test_every_tool_is_in_the_table_of_tools():
    page = (ROOT / "tools" / "README.md").read_text()
    shown = re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE)
    assert sorted(shown) == sorted(file.name for file in (ROOT / "tools").glob("*.py"))
