"""`toolhub policy`: write, check and explain a policy, without a hub."""
