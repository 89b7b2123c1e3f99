"""The options of `dipaco swarm start` that all backbones of a path share.

Volunteers compute with the settings of the leading backbone. A next leader with other settings
would refuse them all.
"""

from dipaco.control.members.swarms import Swarms
from dipaco.swarm.errors import OptionsDiffer
from dipaco.swarm.training.compute import GroupSettings


def options_of(settings: GroupSettings) -> dict[str, str]:
    """Option -> value, as a person reads it."""
    return {
        "--block-rows": str(settings.block_rows),
        "--codec": settings.codec,
        "--state-codec": settings.state_codec,
        "--delayed-updates": "on" if settings.delayed_updates else "off",
    }


def agree(swarms: Swarms, arm: str, path: int, settings: GroupSettings) -> None:
    """Records the options of a backbone that starts.

    Raises:
      OptionsDiffer: other backbones of the path have other options.
    """
    own = options_of(settings)
    recorded, workers = swarms.agree_on_options(arm, path, own)
    if differing := _differing(own, recorded):
        raise OptionsDiffer(differing=differing, path=path, workers=", ".join(workers))


def check(swarms: Swarms, arm: str, path: int, settings: GroupSettings) -> None:
    """Checks a running backbone's options again, since two may have started at once.

    Raises:
      OptionsDiffer: the recorded options are not its own.
    """
    if differing := _differing(options_of(settings), swarms.options(arm, path)):
        workers = ", ".join(swarms.backbones(arm, path))
        raise OptionsDiffer(differing=differing, path=path, workers=workers)


def _differing(own: dict[str, str], recorded: dict[str, str]) -> str:
    """The options that differ, with both values; empty if none does."""
    return ", ".join(
        f"`{option}` is {value} here and {recorded[option]} there"
        for option, value in own.items()
        if recorded.get(option, value) != value
    )
