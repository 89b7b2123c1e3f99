"""Errors of this room: bytes that are missing, damaged or out of reach. The docstring of a class is its message."""

from dipaco.errors import DipacoError, MachineFault


class ObjectMissing(DipacoError):
    """{file} is missing. Restore it from a copy of the run folder; nothing else was changed."""


class ObjectDamaged(DipacoError):
    """{file} is not what was written: {problem}. Restore it from a copy of the run folder; nothing was read from it."""


class StateDiffers(DipacoError):
    """{file} holds the state of another optimiser or model: {values:,} values, where this one has {expected:,}. Give `inner.optimizer` and `model` as they were; nothing was read from it."""


class BadRun(DipacoError):
    """`--run {given!q}`: {problem}. Give a folder, s3://BUCKET/NAME or gs://BUCKET/NAME."""


class LockHeld(MachineFault):
    """Told to end while another process of this machine had locked {file}. Start the same command again: it goes on from here."""


class StoreFault(MachineFault):
    """The store {url} cannot be used now: {problem}."""


class StoreUnreachable(StoreFault):
    """The store {url} could not be reached for {seconds:.0f} s: {problem}. What was recorded is safe; start the same command again when it is back."""


class StoreRefuses(StoreFault):
    """The store {url} refuses: {problem}. Check the credentials in the environment (for S3, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY); they must allow reading, writing, deleting and listing."""


class BucketMissing(StoreFault):
    """There is no bucket for {url}. Create it, or check the name, the region (AWS_REGION) and the endpoint (AWS_ENDPOINT_URL)."""
