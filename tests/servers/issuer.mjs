// An OpenID Connect issuer (oidc-provider) on a free port of loopback. Says its URL, then obeys the lines of its standard
// input: `rotate` (new keys beside the old ones), `revoke` (new keys, the old ones gone), `away` and `back` (answers
// nobody), `deny` and `agree` (what the user says to a login), `person NAME` (who the user is), each answered by a line; `refreshes`
// by how many there were.
import { createServer } from 'node:http';
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';
import Provider from 'oidc-provider';

console.info = () => {};
console.warn = () => {};
const ALGORITHMS = { robot: 'RS256', curve: 'ES256', edwards: 'EdDSA', pss: 'PS256' };

const keys = () => [
  ['rsa', { modulusLength: 2048 }],
  ['ec', { namedCurve: 'P-256' }],
  ['ed25519', {}],
].map(([kind, options]) => ({
  ...generateKeyPairSync(kind, options).privateKey.export({ format: 'jwk' }),
  kid: randomUUID(),
  use: 'sig',
}));

const clients = [...Object.keys(ALGORITHMS), 'brief'].map((client_id) => ({
  client_id,
  client_secret: 'a secret of the test',
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
}));

const DEVICE_CODE = 'urn:ietf:params:oauth:grant-type:device_code';
clients.push(...['cli', 'hasty'].map((client_id) => ({
  client_id,
  application_type: 'native',
  token_endpoint_auth_method: 'none',
  grant_types: ['authorization_code', 'refresh_token', DEVICE_CODE],
  redirect_uris: ['http://127.0.0.1/callback'],
  response_types: ['code'],
})));

// The hub as a client with a secret, for logins at a source's authorization server.
clients.push({
  client_id: 'hub',
  client_secret: 'a secret of the test',
  application_type: 'native',
  grant_types: ['authorization_code', 'refresh_token'],
  redirect_uris: ['http://127.0.0.1/callback'],
  response_types: ['code'],
});

const server = createServer();
await new Promise((listening) => { server.listen(0, '127.0.0.1', listening); });
const issuer = `http://127.0.0.1:${server.address().port}`;
let provider;
let signing = [];
let isAway = false;
let isDenied = false;
let person = 'alice';
let refreshes = 0;

// A client that is known by the document at its id (OAuth Client ID Metadata Document), served for the hub by its operator.
const DOCUMENT = {
  client_id: 'https://hub.example.com/oauth-client.json',
  client_name: 'tool-hub',
  application_type: 'native',
  token_endpoint_auth_method: 'none',
  grant_types: ['authorization_code', 'refresh_token'],
  redirect_uris: ['http://127.0.0.1/callback'],
  response_types: ['code'],
};

function open(former) {
  signing = [...keys(), ...former];
  provider = new Provider(issuer, {
    clients,
    jwks: { keys: signing },
    scopes: ['openid', 'offline_access', 'toolhub'],
    enabledJWA: { idTokenSigningAlgValues: ['RS256', 'ES256', 'EdDSA', 'PS256'] },
    extraTokenClaims: (_, token) => ({ groups: token.clientId === 'curve' ? ['admins'] : [] }),
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    // Clients that registered themselves, as hubs do, get a refresh token without asking: it is used once, and a second
    // use takes away all that came of the login.
    issueRefreshToken: async (_, client, code) => (
      client.grantTypeAllowed('refresh_token')
      && (!['cli', 'hasty'].includes(client.clientId) || code.scopes.has('offline_access'))
    ),
    rotateRefreshToken: true,
    // The one page of the web that it reads.
    fetch: async (url) => (
      String(url) === DOCUMENT.client_id
        ? new Response(JSON.stringify(DOCUMENT), { headers: { 'content-type': 'application/json' } })
        : new Response('', { status: 404 })
    ),
    ttl: { DeviceCode: (_, token, client) => (client.clientId === 'hasty' ? 1 : 600) },
    features: {
      deviceFlow: { enabled: true },
      revocation: { enabled: true },
      clientCredentials: { enabled: true },
      devInteractions: { enabled: false },
      registration: { enabled: true },
      clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource, client) => ({
          scope: 'toolhub',
          audience: resource,
          accessTokenTTL: client.clientId === 'brief' ? 2 : 7200,
          accessTokenFormat: 'jwt',
          jwt: { sign: { alg: ALGORITHMS[client.clientId] ?? 'RS256' } },
        }),
        useGrantedResource: () => true,
      },
    },
  });
  provider.on('grant.success', ({ oidc }) => { refreshes += oidc.params.grant_type === 'refresh_token'; });
}

// Whoever comes is alice, unless `person` was said, and agrees to everything, unless `deny` was said.
async function agree(request, response) {
  const { params, prompt, grantId, session } = await provider.interactionDetails(request, response);
  if (isDenied) {
    await provider.interactionFinished(request, response, { error: 'access_denied' });
    return;
  }
  if (prompt.name === 'login') {
    await provider.interactionFinished(request, response, { login: { accountId: person } });
    return;
  }
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope ?? 'openid');
  for (const resource of [params.resource ?? []].flat()) grant.addResourceScope(resource, params.scope ?? 'toolhub');
  await provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

open([]);
server.on('request', (request, response) => {
  if (isAway) {
    request.socket.destroy();
  } else if (request.url.startsWith('/interaction/')) {
    agree(request, response).catch((error) => response.writeHead(500).end(String(error)));
  } else {
    provider.callback()(request, response);
  }
});
console.log(issuer);
for await (const line of createInterface({ input: process.stdin })) {
  if (line === 'rotate') open(signing.slice(0, 3));
  if (line === 'revoke') open([]);
  if (line === 'away') isAway = true;
  if (line === 'back') isAway = false;
  if (line === 'deny') isDenied = true;
  if (line === 'agree') isDenied = false;
  if (line.startsWith('person ')) person = line.slice('person '.length);
  console.log(line === 'refreshes' ? refreshes : line);
}
server.closeAllConnections();
server.close();
