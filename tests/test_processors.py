"""Processors are counted and named as the system tells it."""

import pytest

from dipaco import processors

TOLD = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC: 9B45
processor\t: 1
vendor_id\t: AuthenticAMD
model name\t: another
"""


@pytest.mark.parametrize(
    ("told", "is_from_amd"),
    [(TOLD, True), (TOLD.replace("AuthenticAMD", "GenuineIntel"), False), ("", False)],
)
def test_the_maker_is_known_where_linux_tells_it(monkeypatch, tmp_path, told, is_from_amd):
    (tmp_path / "cpuinfo").write_text(told)
    monkeypatch.setattr(processors, "_LINUX", tmp_path / "cpuinfo")
    assert processors.is_from_amd() == is_from_amd


def test_the_model_is_that_of_the_first_processor(monkeypatch, tmp_path):
    monkeypatch.setattr(processors, "_LINUX", tmp_path / "cpuinfo")
    assert processors.processor_model()  # there is no such file
    (tmp_path / "cpuinfo").write_text(TOLD)
    assert processors.processor_model() == "AMD EPYC: 9B45"


def test_those_that_a_process_may_not_use_do_not_count(monkeypatch):
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
    assert processors.num_processors() == 3
    monkeypatch.delattr(processors.os, "sched_getaffinity")
    assert processors.num_processors() >= 1
