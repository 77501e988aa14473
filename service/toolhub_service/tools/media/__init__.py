"""core/media.send: messages to configured channels."""
