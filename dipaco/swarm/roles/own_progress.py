"""A volunteer's terminal lines about the run and its own part in it."""

from dipaco.model.config import num_parameters
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import RunOverview
from dipaco.swarm.training.compute import GroupSettings

NO_ROWS = {  # reasons for having no rows, keyed as in `members.WHY`
    "is parked": "waits: the others need less for what is left of a step than this machine for one "
    "block. It is asked again at every step",
    "is suspended": "suspended: two averagings in a row did not end with this machine, mostly "
    "since its part was late. It gets rows again after a while, or as soon as no other computes",
}


def own_progress(
    overview: RunOverview, name: str, address: str, samples_per_second: float, does: str
) -> str:
    """One line."""
    said = []
    for path in overview.paths:
        if address in path.addresses:
            of_all = f" of {overview.steps:,}" if overview.steps else ""
            said.append(f"path {path.path}: step {path.step:,}{of_all}")
    for one in overview.helpers:
        if one.name == name:
            said.append(
                f"{one.samples:,} samples by you in all sessions ({one.share:.1%}), place "
                f"{one.place} of {len(overview.helpers)}"
            )
    speed = f" at {samples_per_second:.1f} samples/s" if samples_per_second else ""
    return "; ".join([*said, f"this machine {does}{speed if does == 'computes' else ''}"])


def limit_sentence(settings: GroupSettings, bytes_per_second: float) -> str:
    """Explains a `--megabits` limit to a volunteer of this group."""
    values = num_parameters(settings.model)
    state_seconds = 12 * values / bytes_per_second
    step_seconds = 2 * codec_of(settings.codec).num_bytes(values) / bytes_per_second
    return (
        f"at {bytes_per_second / 125_000:g} Mbit/s the state comes in {state_seconds:,.0f} s, and "
        f"each step takes {step_seconds:,.0f} s to send and fetch: where the others are sooner, "
        "they do not wait, and this machine needs a higher --megabits to take part"
    )
