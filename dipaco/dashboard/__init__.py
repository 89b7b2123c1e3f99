"""The dashboard: one page that shows a run as it is, and replays it as it was.

It reads the ledger and writes nothing. The facts become one document, the *recording* (JSON, with
columns of numbers). The page draws it, live or from a file, and the tests compare it with the
values of `status`, `inspect` and the report.

    facts.py      the facts that are drawn over time, in columns; grows with the history
    reader.py     reads them from the ledger: all of it once, then the news (the `.sql` files)
    recording.py  the document; curves.py: its learning curves; alarms.py: its warnings
    texts.py      routing of text: which document trained which path in which phases
    columns.py    columns of numbers as text
    watcher.py    one reader for all open pages; sweep.py: the runs and the table of a sweep
    server.py     the HTTP server; page.py: the page as one file, of its pieces/

May import `workers`, `runs`, `serving` (for its server) and everything lower.
"""
