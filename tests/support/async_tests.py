"""What the hooks that run `async def` tests have in common."""

import inspect


def arguments_of(pyfuncitem):
    """The arguments of an `async def` test by name. None: it is another test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    return {name: pyfuncitem.funcargs[name] for name in names}
