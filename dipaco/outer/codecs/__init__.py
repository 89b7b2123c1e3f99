"""Codecs of contributions: pairs of pure functions from a float32 tree to a message and back.

`contract` defines a codec. `rounded` has the codecs that round every value (`bfloat16`, `int8`) or
none (`none`). `int4` keeps a value's sign and its power of two (E3M0), `int2` its sign and one of
two magnitudes. `packing` packs small numbers and the scales of blocks, and `sealed` joins the
leaves of a module into one message with a checksum. All is NumPy, so that every machine makes the
same bits: no codec sums floats, whose order a processor may choose.

Another codec is a file here; a name in `CodecName` of `outer/config.py`; a line in `BY_NAME` of
`outer/compress.py`; a line in each table of `tests/outer/test_compress.py`; its name in
`tests/test_settings.py`; a row in `workers/slow_links.md`; and `configs/settings.md`, made again by
`tools/settings_page.py`. Volunteers have codecs of their own (`swarm/network/codecs.py`).
"""
