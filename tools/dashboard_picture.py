"""A picture of a run's dashboard, by a browser.

    python tools/dashboard_picture.py runs/quickstart dipaco/dashboard/dashboard.png

Exports the page to a temporary folder and opens it from there in Chromium (the extra `test` has
Playwright, and `apt-get install chromium` the browser).
"""

from pathlib import Path

from support.chromium import chromium
from support.command_line import parser_of
from support.scratch import scratch


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280, help="of the window, pixels (1280)")
    parser.add_argument("--height", type=int, default=1130, help="(1130)")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--module", help="that is opened, as early/0001")
    parser.add_argument("--share", type=float, default=1.0, help="of the run's time (1)")
    options = parser.parse_args()

    from dipaco.dashboard.page import export
    from dipaco.runs.opening import reading

    with scratch(None, "dashboard-") as folder, chromium() as browser:
        with reading(options.run) as run:
            export(run, folder / "page.html")
        page = browser.new_page(
            color_scheme=options.scheme,
            viewport={"width": options.width, "height": options.height},
        )
        page.goto((folder / "page.html").as_uri())
        if options.share < 1:
            page.evaluate(f"goTo({options.share} * run.end)")
        if options.module:
            page.locator(f".cell[data-module='{options.module}']").click()
        page.screenshot(path=options.picture)


if __name__ == "__main__":
    main()
