"""Codecs of contributions, one a file: pairs of pure functions from a float32 tree to a message and
back.

`contract` says what a codec is. `bfloat16` and `int8` round every value; `int4` keeps its sign and
its power of two (`e3m0`); `sparse2` sends few values, in two bits each, and `turns2` every value in
its turn. `blocks` cuts leaves into blocks, a token's row in one; `magnitudes` has scales in a byte;
`bits` packs numbers of a few bits; `sealed` joins the leaves of a module into one message with a
checksum. NumPy, for the same bits on every machine: nothing here is a sum of floats, whose order a
processor may choose.

Another codec is a file here, a name in `CodecName` of `outer/config.py`, a line in
`outer/compress.py`, and one in each table of `tests/outer/test_compress.py`.
"""
