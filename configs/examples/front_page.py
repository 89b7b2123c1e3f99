"""The table and the picture of the front page, from Python.

    python configs/examples/front_page.py --run runs/quickstart

Trains the quickstart, three to six minutes on two CPU cores; a run that is there is gone on with.
"""

import argparse
from pathlib import Path

import dipaco

COLUMNS = ("perplexity", "parameters_total", "tokens", "bytes_per_machine")
DECIMALS = {"perplexity": 2}  # the others are whole numbers


def main(config: str, folder: Path) -> None:
    with dipaco.run(config, folder) as run:
        print(run)
        print(f"\n{'row':<20}" + "".join(f"{name:>18}" for name in COLUMNS))
        for row in run.report.rows:
            values = (f"{row[name]:>18,.{DECIMALS.get(name, 0)}f}" for name in COLUMNS)
            print(f"{row['name']:<20}" + "".join(values))
        picture = folder / "front_page.png"
        run.plot(picture)
        print(f"\nDrawn: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="quickstart", help="a shipped config, or a file")
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), metavar="DIR")
    options = parser.parse_args()
    main(options.config, options.run)
