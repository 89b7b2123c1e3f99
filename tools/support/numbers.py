"""Numbers on a tool's command line."""

import argparse


def at_least_one(text: str) -> int:
    """A whole number, 1 or more. Raises `argparse.ArgumentTypeError`."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def several(text: str) -> tuple[int, ...]:
    """Such numbers with commas between them. Raises likewise."""
    return tuple(at_least_one(word) for word in text.split(","))
