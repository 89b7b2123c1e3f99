"""One change to the program after which one of its guarantees no longer holds."""

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """A change of a line or two, and the tests that must notice it.

    Args:
      name: for `--only`.
      file: from the root of the repository.
      old: text that stands exactly once in the file.
      new: what takes its place.
      breaks: the sentence that is no longer true, and what it costs.
      tests: files or `FILE::TEST` for pytest, of which at least one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def problem(self, root: Path) -> str | None:
        """Reason why it cannot be applied to the tree at `root`, or None."""
        file = root / self.file
        if not file.is_file():
            return f"{self.name}: {self.file} is not there. Where did the guarantee move to?"
        count = file.read_text().count(self.old)
        if count != 1:
            return (
                f"{self.name}: its old text is {count} times in {self.file}, expected once: "
                f"{self.old!r}. Bring the mutant up to date."
            )
        if self.new == self.old:
            return f"{self.name}: it changes nothing"
        for test in self.tests:
            place, _, name = test.partition("::")
            name = name.partition("[")[0]
            if not (root / place).is_file() or f"def {name}" not in (root / place).read_text():
                return f"{self.name}: there is no test {test}"
        return None

    def apply(self, root: Path) -> None:
        """Changes the tree at `root`, which is a copy."""
        file = root / self.file
        file.write_text(file.read_text().replace(self.old, self.new))
