"""The flight recorder: one page that shows a run as it is, and replays it as it was.

Reads the ledger and writes nothing. What is read becomes one document, the *recording* (JSON, with
columns of numbers): the page draws it, live or from a file, and the tests compare it with what
`status`, `inspect` and the report say.

    facts.py      what of a run's facts is drawn over time, in columns; grows with the history
    reader.py     reads them from the ledger: all of it once, then what is new (the `.sql` files)
    recording.py  the document; curves.py: its learning curves; alarms.py: what needs a person
    texts.py      where text went: which document trained which path in which phases
    columns.py    columns of numbers as text
    watcher.py    one reader for all open pages
    server.py     the HTTP server; page.py: the page as one file, of its pieces/

May import `workers`, `runs`, `serving` (for its server) and everything lower.
"""
