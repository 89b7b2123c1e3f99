"""Prints the page of all settings, from the sentences that stand with them in the code.

python tools/settings_page.py > configs/settings.md
"""

from collections.abc import Iterator

from dipaco.config import RunConfig
from dipaco.settings import (
    REQUIRED,
    Setting,
    SettingsGroup,
    groups_of,
    kind_in_words,
    value_in_words,
)

HEAD = """\
# Every setting

For the person who writes a config or a `--set`. `dipaco config show CONFIG --explain NAME` prints
the same of one setting or group, with its value in a config. [Options](options.md) says what the
algorithm's are for, [results](ablations/README.md) what they bring.

Made from the code by `python tools/settings_page.py > configs/settings.md`. Defaults of `base`,
`inner` and `outer` are those of the paper's path of 150 M parameters, where it states them.
*DiPaCo* is arXiv 2403.10616, *SmallTalk LM* arXiv 2410.03529. A list is written with commas; `()`
is an empty one.
"""
TABLE = """\
| setting | default | may be | is |
| :-- | --: | :-- | :-- |
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join([HEAD, *(_section(group) for group in groups_of(RunConfig))])


def _section(group: SettingsGroup) -> str:
    rows = "\n".join(map(_row, group.settings))
    title = f"`{group.name}`" if group.name else "The run"
    return f"## {title}\n\n{group.sentence}\n\n{TABLE}{rows}\n"


def _row(setting: Setting) -> str:
    default = "" if setting.default is REQUIRED else value_in_words(setting.default)
    cells = (f"`{setting.name}`", default, kind_in_words(setting.kind), setting.sentence)
    return f"| {' | '.join(_escaped(cells))} |"


def _escaped(cells: tuple[str, ...]) -> Iterator[str]:
    return (cell.replace("|", "\\|") for cell in cells)


if __name__ == "__main__":
    print(page(), end="")
