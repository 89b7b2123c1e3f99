"""The network between peers: messages, codecs, credentials, streams, and finding the leader."""
