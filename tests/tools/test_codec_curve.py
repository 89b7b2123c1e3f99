"""`tools/codec_curve.py`: its table by hand."""

from codec_curve import Curve, table


def test_the_table_compares_every_phase_with_the_row_that_sends_most():
    curves = [
        Curve("float32", 32.0, 32.0, {5: 100.0, 10: 50.0}),
        Curve("int2", 0.2266, 32.0, {5: 150.0, 10: 50.5, 15: 40.0}),
    ]
    assert table(curves).splitlines() == [
        "| row | bits up | bits down | after 5 | after 10 | after 15 |",
        "| :-- | --: | --: | --: | --: | --: |",
        "| float32 | 32.000 | 32.000 | 100.00 | 50.00 |  |",
        "| int2 | 0.227 | 32.000 | 150.00 (+50.0%) | 50.50 (+1.0%) | 40.00 |",
    ]
