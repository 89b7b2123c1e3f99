"""The kind of model that a row trains, and its config without what only decides speed."""

import dataclasses

from dipaco.config import DATA_PARALLEL, DENSE, MODULAR, RunConfig
from dipaco.data.config import OF_SPEED, DataConfig
from dipaco.evaluation.style import DILOCO


def kind_of(name: str, config: RunConfig) -> str:
    """`dense`, `data_parallel`, ...: the kind of the trained model, whatever a row is called."""
    if "/" in name:  # a dense baseline of the row's run
        return name.rpartition("/")[2]
    if config.num_paths == 1:
        return DENSE
    if is_diloco(config):
        return DILOCO
    return DATA_PARALLEL if config.shares_all else MODULAR


def is_diloco(config: RunConfig) -> bool:
    """True if several paths share every part, and are averaged at outer steps."""
    return config.num_paths > 1 and config.shares_all and not config.outer.synchronous


def but_for_speed(config: RunConfig) -> RunConfig:
    """The config without what only decides how fast its text is read, as by default."""
    default = DataConfig()
    of_speed = {name: getattr(default, name) for name in OF_SPEED}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **of_speed))
