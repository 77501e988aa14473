"""Recognition of secrets by their form alone: token families, armoured keys, credentials in URLs.

Families are (prefix, rest): the prefix alone is the cheap sign that a text must be searched in full, prefix and rest
together are removed. Forms follow the public rules of gitleaks and of the issuers' own documentation; lengths are
lower bounds, because a token that was cut is still worth hiding. All patterns are RE2 (linear time) over bytes, so
that text of any kind, invalid UTF-8 included, can be searched.
"""

from __future__ import annotations

from typing import Final

EDGE: Final = r"(?:\b|\\[bfnrt])"
"""The start of a word, also in JSON text, where a line break before it is written `\\n` and ends in a letter."""

FAMILIES: Final[tuple[tuple[str, str], ...]] = (
    (r"thk_", r"[0-9a-f]{8}_[A-Za-z0-9_\-]{16,}"),  # this hub's own API keys
    (r"gh[pousr]_", r"[A-Za-z0-9]{20,}"),  # GitHub
    (r"github_pat_", r"[A-Za-z0-9_]{20,}"),
    (r"gl(?:pat|ptt|dt|rt|cbt|ft|imt|agent|oas|soat|ffct)-", r"[A-Za-z0-9_.\-]{16,}"),  # GitLab
    (r"GR1348941", r"[A-Za-z0-9_\-]{16,}"),
    (r"xox[abeoprs][.\-]", r"[A-Za-z0-9.\-]{10,}"),  # Slack
    (r"xapp-", r"[A-Za-z0-9\-]{10,}"),
    (r"hooks\.slack\.com/(?:services|workflows|triggers)/", r"[A-Za-z0-9+/]{16,}"),
    (r"discord(?:app)?\.com/api/webhooks/", r"[0-9]+/[A-Za-z0-9_\-]+"),
    (r"sk-", r"[A-Za-z0-9_\-]{20,}"),  # OpenAI, Anthropic, OpenRouter …
    (r"[rs]k_(?:live|test|prod)_", r"[A-Za-z0-9]{10,}"),  # Stripe
    (r"whsec_", r"[A-Za-z0-9+/=]{20,}"),
    (r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])", r"[A-Z0-9]{13,16}"),  # AWS
    (r"ABSK", r"[A-Za-z0-9+/]{80,}=*"),
    (r"bedrock-api-key-", r"[A-Za-z0-9+/=]{16,}"),
    (r"AIza", r"[A-Za-z0-9_\-]{35}"),  # Google
    (r"ya29\.", r"[A-Za-z0-9_\-]{20,}"),
    (r"GOCSPX-", r"[A-Za-z0-9_\-]{20,}"),
    (r"npm_", r"[A-Za-z0-9]{30,}"),
    (r"pypi-", r"[A-Za-z0-9_\-]{30,}"),
    (r"rubygems_", r"[a-f0-9]{40,}"),
    (r"CLOJARS_", r"[a-z0-9]{40,}"),
    (r"dckr_[po]at_", r"[A-Za-z0-9_\-]{20,}"),
    (r"SG\.", r"[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}"),  # SendGrid
    (r"(?:hf|api_org)_", r"[A-Za-z]{30,}"),  # Hugging Face
    (r"do[opr]_v1_", r"[a-f0-9]{32,}"),  # DigitalOcean
    (r"shp(?:at|ca|pa|ss)_", r"[a-fA-F0-9]{32}"),  # Shopify
    (r"hv[sbr]\.", r"[A-Za-z0-9_\-]{20,}"),  # Vault
    (r"s\.", r"[A-Za-z0-9]{24}\b"),
    (r"[A-Za-z0-9]{14}\.atlasv1\.", r"[A-Za-z0-9_=\-]{40,}"),
    (r"EAA", r"[A-Za-z0-9]{60,}"),  # Facebook
    (r"[0-9]{15,16}(?:\||%7[cC])", r"[A-Za-z0-9_\-]{27,}"),
    (r"ops_eyJ", r"[A-Za-z0-9+/=_\-]{50,}"),  # 1Password
    (r"A3-[A-Z0-9]{6}-", r"[A-Z0-9]{5,11}(?:-[A-Z0-9]{5,6}){3,4}"),
    (r"AT[AC]TT3", r"[A-Za-z0-9_=\-]{50,}"),  # Atlassian
    (r"[A-Za-z0-9_~.]{2,3}[0-9]Q~", r"[A-Za-z0-9_~.\-]{30,34}"),  # Entra ID client secret
    (r"4b1d", r"[A-Za-z0-9]{38}\b"),  # ClickHouse
    (r"v1\.0-[a-f0-9]{24}-", r"[a-f0-9]{80,}"),  # Cloudflare
    (r"ntn_", r"[A-Za-z0-9]{40,}"),  # Notion
    (r"secret_", r"[A-Za-z0-9]{40,}"),
    (r"API-", r"[A-Z0-9]{26}\b"),  # Octopus
    (r"pplx-", r"[A-Za-z0-9]{40,}"),
    (r"gsk_", r"[A-Za-z0-9]{40,}"),  # Groq
    (r"xai-", r"[A-Za-z0-9]{40,}"),
    (r"r8_", r"[A-Za-z0-9]{30,}"),  # Replicate
    (r"lsv2_(?:pt|sk)_", r"[a-f0-9_]{32,}"),  # LangSmith
    (r"sgp_", r"(?:(?:[a-fA-F0-9]{16}|local)_)?[a-fA-F0-9]{40}"),  # Sourcegraph
    (r"s-s4t2(?:ud|af)-", r"[a-f0-9]{40,}"),
    (r"sha256~", r"[A-Za-z0-9_\-]{40,}"),  # OpenShift
    (r"dapi", r"[a-f0-9]{32}"),  # Databricks
    (r"PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}"),  # Postman
    (r"lin_api_", r"[A-Za-z0-9]{40}"),  # Linear
    (r"figd_", r"[A-Za-z0-9_\-]{40}"),
    (r"dp\.(?:pt|st|ct|sa|scim|audit)\.", r"[A-Za-z0-9_.\-]{20,}"),  # Doppler
    (r"pul-", r"[a-f0-9]{40}"),
    (r"gl(?:c|sa)_", r"[A-Za-z0-9+/_]{32,}=*"),  # Grafana
    (r"NRAK-", r"[A-Z0-9]{27}"),  # New Relic
    (r"AGE-SECRET-KEY-1", r"[0-9A-Z]{50,}"),
    (r"sntry[su]_", r"[A-Za-z0-9+/=_]{40,}"),  # Sentry
    (r"sq[upa]_", r"[a-f0-9]{40}"),  # SonarQube
    (r"key-", r"[0-9a-f]{32}\b"),  # Mailgun
    (r"[0-9a-f]{32}-us", r"[0-9]{1,2}\b"),  # Mailchimp
    (r"fo1_", r"[A-Za-z0-9_\-]{40,}"),  # Fly.io
    (r"tskey-", r"[A-Za-z0-9\-]{20,}"),  # Tailscale
    (r"[0-9]{8,10}:AA", r"[A-Za-z0-9_\-]{33}"),  # Telegram
    (r"AKCp", r"[A-Za-z0-9]{60,}"),  # Artifactory
    (r"[MNO][A-Za-z0-9_\-]{23,25}\.", r"[A-Za-z0-9_\-]{6}\.[A-Za-z0-9_\-]{27,}"),  # Discord bot
    (r"xkeysib-", r"[a-f0-9]{40,}(?:-[A-Za-z0-9]{16})?"),  # Brevo
    (r"xsmtpsib-", r"[a-f0-9]{40,}(?:-[A-Za-z0-9]{16})?"),
    (r"pscale_(?:tkn|pw|oauth)_", r"[A-Za-z0-9_.=\-]{30,}"),  # PlanetScale
    (r"shippo_(?:live|test)_", r"[a-fA-F0-9]{32,}"),  # Shippo
    (r"pat[A-Za-z0-9]{14}\.", r"[a-f0-9]{40,}"),  # Airtable
    (r"dt0[a-z][0-9]{2}\.", r"[A-Za-z0-9]{24}\.[A-Za-z0-9]{40,}"),  # Dynatrace
    (r"LTAI", r"[A-Za-z0-9]{12,}"),  # Alibaba Cloud
    (r"EAAA", r"[A-Za-z0-9_\-]{50,}"),  # Square
    (r"sq0(?:atp|csp|idp)-", r"[A-Za-z0-9_\-]{20,}"),
    (r"SK[0-9a-f]{8}", r"[0-9a-f]{24}\b"),  # Twilio
    (r"1//0", r"[A-Za-z0-9_\-]{30,}"),  # Google OAuth refresh token
    (r"HRKU-", r"[A-Za-z0-9_\-]{36,}"),  # Heroku
    (r"AAAA[A-Za-z0-9_\-]{7}:", r"[A-Za-z0-9_\-]{100,}"),  # Firebase Cloud Messaging server key
    (r"sb(?:p|_secret)_", r"[A-Za-z0-9_\-]{20,}"),  # Supabase
    (r"vc[pikar]_", r"[A-Za-z0-9]{24,}"),  # Vercel
    (r"vercel_blob_rw_", r"[A-Za-z0-9_]{20,}"),
    (r"00[A-Za-z][A-Za-z0-9_\-]{39}", r"\b"),  # Okta
    (r"(?:pat|sat)\.[A-Za-z0-9_\-]{22}\.", r"[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"),  # Harness
    (r"fm(?:1[ar]|2)_", r"[A-Za-z0-9+/]{60,}=*"),  # Fly.io macaroons
    (r"FLWSECK(?:_TEST)?-", r"[A-Za-z0-9]{12,}(?:-X)?"),  # Flutterwave
    (r"duffel_(?:test|live)_", r"[A-Za-z0-9_\-=]{40,}"),
    (r"EZ[AT]K", r"[A-Za-z0-9]{50,}"),  # EasyPost
    (r"p8e-", r"[A-Za-z0-9]{32}"),  # Adobe
    (r"fio-u-", r"[A-Za-z0-9\-_=]{60,}"),
    (r"ico-", r"[A-Za-z0-9]{32}\b"),  # Infracost
    (r"pnu_", r"[A-Za-z0-9]{36}"),  # Prefect
    (r"rdme_", r"[a-z0-9]{60,}"),
    (r"tk-us-", r"[A-Za-z0-9_\-]{40,}"),  # Scalingo
    (r"sm_[aps]at_", r"[A-Za-z0-9]{16}"),  # SettleMint
    (r"cmVmd", r"[A-Za-z0-9]{59}\b"),  # Artifactory reference token
    (r"ZXlK", r"[A-Za-z0-9+/_\-]{40,}=*"),  # a JWT in base64
    (r"eyJ[A-Za-z0-9_\-]{8,}\.", r"[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]*){1,3}"),  # JWT (RFC 7519), JWE
)

PRIVATE_KEY: Final = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]*-----|\z)"
PRIVATE_KEY_SIGN: Final = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY"

URL_USERINFO: Final = r"""(://)([^/\s?#"'<>\\]+)@"""
"""RFC 3986 §3.2.1, the whole userinfo: tokens are often used in place of the user name."""
URL_SECOND: Final = r"""(://[^/\s:@"'<>\\]*:)([^\s"'<>@\\]+)@"""
"""A password that contains `/`, `?` or `#`, which a strict parser would take for a path."""
URL_SIGN: Final = r"""://[^\s"'<>@\\]*@"""

QUERY_NAMES: Final = r"(?i:sig|signature|x-amz-signature|x-goog-signature|x-amz-credential|key|assertion|samlresponse)"
QUERY: Final = rf"""([?&;]{QUERY_NAMES}=)([^&\s#"'<>]+)"""
QUERY_SIGN: Final = rf"[?&;]{QUERY_NAMES}="

SCHEME: Final = r"(?i)((?:\\[bfnrt]|\b)(?:bearer|basic|digest|negotiate))(\s+)([A-Za-z0-9._~+/\-]{8,}=*)"
SCHEME_SIGN: Final = EDGE + r"(?i:bearer|basic|digest|negotiate)\s"

CURL_USER: Final = (
    r"""(\s(?:-u|--user|--proxy-user)[\s=]+)"""
    r"""("[^"\n]*"(?::"[^"\n]*")?|'[^'\n]*'|[^\s"']*:(?:"[^"\n]*"|'[^'\n]*'|\S+))"""
)
CURL_SIGN: Final = r"""[\s"](?:-u|--user|--proxy-user)[\s=",]"""
CURL_USER_FLAGS: Final = frozenset({"-u", "--user", "--proxy-user"})
