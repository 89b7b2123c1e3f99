"""DiPaCo: one large modular language model, trained as many small paths.

    run = dipaco.run("quickstart", "runs/quickstart")    # as `dipaco train`
    run = dipaco.open("runs/quickstart")                 # its report, modules, text, perplexity
    config = dipaco.load_config("quickstart", ["inner.steps=50"])

Nothing heavy is imported here: `import dipaco` answers at once, and each name is loaded when it is
first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dipaco.library.opened import OpenedRun, compare, open
    from dipaco.library.training import run
    from dipaco.overrides import load_config
    from dipaco.runs.rules import Rules

__version__ = "0.4.0"

_HOMES = {
    "compare": "dipaco.library.opened",
    "open": "dipaco.library.opened",
    "run": "dipaco.library.training",
    "OpenedRun": "dipaco.library.opened",
    "Rules": "dipaco.runs.rules",
    "load_config": "dipaco.overrides",
}
__all__ = ["OpenedRun", "Rules", "compare", "load_config", "open", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dipaco' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The names that are meant for others, and Python's own."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
