"""Stores: what outlives a call, behind the ports of the domain."""
