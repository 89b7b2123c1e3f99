"""What the terminal of a volunteer says of the run and of its own part in it."""

from dipaco.swarm.network.run_overview import RunOverview


def own_progress(
    overview: RunOverview, name: str, address: str, samples_per_second: float, does: str
) -> str:
    """One line.

    Args:
      overview: of the run.
      name: on the credential of this machine.
      address: of the backbone that leads its path.
      samples_per_second: of this machine, while it computes.
      does: what it does now.
    """
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
