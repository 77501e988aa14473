"""How commands reach a hub and identify themselves: contexts, options, the channel, the client, and logins."""
