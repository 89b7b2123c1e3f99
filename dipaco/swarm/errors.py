"""Errors of swarms: credentials, addresses and messages that are refused, groups out of reach."""

from dipaco.errors import DipacoError


class BadCredential(DipacoError):
    """The credential cannot be used: {problem}. {remedy}"""


class CredentialExists(DipacoError):
    """{file} is there already, and is left as it is: it may be a credential that {name} uses. Give the new one another name with `--out FILE`, or move the old file away. The old credential stays valid until it expires, or until `dipaco swarm revoke {name}`, which ends all of that name."""


class MessageRefused(DipacoError):
    """{sender} was refused: {reason}."""


class BadMessage(DipacoError):
    """A message cannot be understood: {problem}."""


class BadAddress(DipacoError):
    """`{given}` is not an address of a swarm. Expected HOST:PORT, as `dipaco swarm start` prints it, with a port to 65535."""


class NoSigningKey(DipacoError):
    """{folder} was begun with another signing key than {file}, and only that one makes credentials. The person who began the run has it: have them make one (`dipaco swarm token --run {folder!q} --name NAME`, with `--backbone` for `dipaco swarm start --token FILE`), or copy the file from there."""


class TlsRefused(DipacoError, ConnectionError):
    """No connection to {address}: {problem}. Nothing was sent there. Check the address and the credential; both come from the person who runs the swarm."""


class SwarmUnreachable(DipacoError):
    """None of the backbones answers ({addresses}): {problem}. Check the address and your connection; the group continues without this machine."""


class SwarmRefuses(DipacoError):
    """The swarm does not let this machine take part: {reason}"""


class OptionsDiffer(DipacoError):
    """Backbones of one path need the same options, and {differing}. Backbones of path {path} that are running, or have crashed: {workers}. Give this one the same options. To change them, end those with Ctrl-C first, one that crashed after a start with its `--name` and the old options."""


class NoSuchSwarm(DipacoError):
    """No backbone of path {path} is live; there are backbones of these paths: {known}."""
