"""How peers talk: messages, codecs, credentials, the signed wire protocol, transports."""
