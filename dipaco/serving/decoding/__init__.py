"""Decoding on the device: the cache of keys and values, batches of rows, blocks of tokens, sampling."""
