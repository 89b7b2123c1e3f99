"""What peers say to each other and how: messages, codecs, credentials, transport."""
