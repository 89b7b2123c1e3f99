"""Command lines of the tools."""

import argparse


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with a tool's own docstring, line by line."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def at_least_one(text: str) -> int:
    """Reads a whole number, 1 or more. Raises `argparse.ArgumentTypeError`."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def several(text: str) -> tuple[int, ...]:
    """Reads such numbers with commas between them. Raises likewise."""
    return tuple(at_least_one(word) for word in text.split(","))
