"""Lines for whoever reads along, in a terminal or a log."""


def say(sentence: str) -> None:
    """One line, now."""
    print(sentence, flush=True)
