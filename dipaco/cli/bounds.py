"""Options that are numbers: what is in range, and a sentence for what is not."""

from dipaco.errors import BadSetting

DAY_SECONDS = 86400.0
MOST_PROCESSES = 10_000  # more were typed by mistake
LAST_PORT = 65535


def option_of(name: str) -> str:
    """`path_bytes` -> `--path-bytes`."""
    return f"--{name.replace('_', '-')}"


def check_between(option: str, value: float | None, least: float, most: float) -> None:
    """Raises `BadSetting`. None, where the option was left out, is fine."""
    if value is not None and not least <= value <= most:  # nor a NaN
        raise BadSetting(name=option, value=value, expected=f"{least:g} to {most:g}")


def check_count(option: str, value: int | None, least: int, most: int = MOST_PROCESSES) -> None:
    """Raises `BadSetting`. None, where the option was left out, is fine."""
    if value is not None and not least <= value <= most:
        raise BadSetting(name=option, value=value, expected=f"{least} to {most}")


def check_lease(seconds: float) -> None:
    """Raises `BadSetting`: `--lease-seconds` is none that a worker can renew."""
    check_between("--lease-seconds", seconds, 1.0, DAY_SECONDS)
