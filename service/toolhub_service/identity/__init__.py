"""Who calls, by the credential presented: tokens of configured issuers, API keys and certificates, for every interface.

`token.py` validates the claims of a token; `keys.py` holds the keys of an issuer, fetched through the egress guard;
`tokens.py` combines both, and caches verified tokens until they expire. `api_keys.py` has the stored form of an API
key. `spiffe.py` validates certificates, `xfcc.py` parses what an Envoy says of its clients' certificates, and
`workload_api.py` gets the hub's own from the SPIFFE agent.
"""
