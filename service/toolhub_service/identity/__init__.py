"""Who a token speaks of: JSON Web Tokens of configured issuers, for every entrance.

`token.py` judges what a token says; `keys.py` holds the keys of an issuer, fetched through the egress guard;
`tokens.py` joins both, and remembers what it has verified until that expires.
"""
