"""Who calls, by what is shown: tokens of configured issuers, API keys and certificates, for every entrance.

`token.py` judges what a token says; `keys.py` holds the keys of an issuer, fetched through the egress guard;
`tokens.py` joins both, and remembers what it has verified until that expires. `api_keys.py` is what is kept of an API
key. `spiffe.py` judges certificates, `xfcc.py` what an Envoy says of those of its clients, and `workload_api.py` gets
the hub's own from the SPIFFE agent.
"""
