package toolhub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

const (
	defaultAddress  = "127.0.0.1:50051"
	defaultPort     = "50051"
	defaultRetry    = 10 * time.Second
	maxMessageBytes = 16 << 20
)

// version is sent with every RPC as part of the user agent.
const version = "0.1.0"

// Config says how to reach a hub. What is left out comes from the environment.
type Config struct {
	// APIKey is sent with every RPC, also by the generated clients. TOOLHUB_API_KEY.
	APIKey string
	// CAFile holds certificates (PEM) to trust in the place of the system's. TOOLHUB_CA_FILE.
	CAFile string
	// CertFile and KeyFile are the caller's own, for mutual TLS. TOOLHUB_CERT_FILE, TOOLHUB_KEY_FILE.
	CertFile, KeyFile string
	// TLS are credentials of the channel in the place of the files.
	TLS credentials.TransportCredentials
	// Context is what every call is made under unless its Call brings its own. Without a request id all calls share
	// that of TOOLHUB_REQUEST_ID, or one that is made up, and with it a workspace.
	Context *toolhubv1.ExecContext
	// AutomaticKeys gives each call without an idempotency key one, so that it may be repeated when its connection breaks.
	AutomaticKeys bool
	// Retry is how long to wait for a hub to answer, and to repeat what may be repeated. 0 means 10 s; below 0 asks once.
	Retry time.Duration
	// Options are further ones of the channel, such as interceptors that trace.
	Options []grpc.DialOption
	// Warn is called when an API key is sent unencrypted. Nil: the standard logger.
	Warn func(message string)
}

// A hub that was started again is found soon.
var reconnect = backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}

// A connection that swallows everything is noticed after 40 s, also while a call waits for its answer.
var alive = keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}

// dial opens the channel. It does not wait for the hub.
func dial(address string, config *Config) (*grpc.ClientConn, string, error) {
	where, transport, err := target(address, config)
	if err != nil {
		return nil, "", err
	}
	isEncrypted := transport.Info().SecurityProtocol != "insecure"
	retry := &retrier{address: where, patience: config.Retry, isEncrypted: isEncrypted}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 20 * time.Second}),
		grpc.WithKeepaliveParams(alive),
		grpc.WithUserAgent("toolhub-go/" + version),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithChainUnaryInterceptor(retry.unary),
		grpc.WithChainStreamInterceptor(retry.stream),
	}
	if config.APIKey != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(config.APIKey)))
		if !isEncrypted && !isLocal(where) {
			config.Warn(fmt.Sprintf("The API key goes to %s unencrypted; use https:// or set TOOLHUB_CA_FILE.", where))
		}
	}
	connection, err := grpc.NewClient(where, append(options, config.Options...)...)
	return connection, where, err
}

// target fills in what the environment says, and tells what to connect to and how.
func target(address string, config *Config) (string, credentials.TransportCredentials, error) {
	given := firstOf(address, os.Getenv("TOOLHUB_ADDRESS"), defaultAddress)
	explicit := config.CAFile != "" || config.CertFile != "" || config.TLS != nil
	config.APIKey = firstOf(config.APIKey, os.Getenv("TOOLHUB_API_KEY"))
	config.CAFile = firstOf(config.CAFile, os.Getenv("TOOLHUB_CA_FILE"))
	config.CertFile = firstOf(config.CertFile, os.Getenv("TOOLHUB_CERT_FILE"))
	config.KeyFile = firstOf(config.KeyFile, os.Getenv("TOOLHUB_KEY_FILE"))
	if config.Retry == 0 {
		config.Retry = defaultRetry
	}
	if config.Warn == nil {
		config.Warn = func(message string) { log.Print(message) }
	}
	if (config.CertFile == "") != (config.KeyFile == "") {
		return "", nil, errors.New("CertFile and KeyFile belong together: give both or none")
	}
	scheme, where := split(given)
	if scheme == "http" && explicit {
		return "", nil, fmt.Errorf("%s asks for plaintext, and certificates for TLS: write https://", given)
	}
	if config.TLS != nil {
		return where, config.TLS, nil
	}
	if scheme == "http" || scheme == "" && config.CAFile == "" && config.CertFile == "" {
		return where, insecure.NewCredentials(), nil
	}
	settings, err := tlsConfig(config)
	return where, credentials.NewTLS(settings), err
}

func tlsConfig(config *Config) (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if config.CAFile != "" {
		pem, err := os.ReadFile(config.CAFile)
		if err != nil {
			return nil, err
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate (PEM)", config.CAFile)
		}
	}
	if config.CertFile != "" {
		own, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
		if err != nil {
			return nil, err
		}
		settings.Certificates = []tls.Certificate{own}
	}
	return settings, nil
}

// split tells the scheme (http, https or none) from what grpc connects to.
func split(address string) (scheme, where string) {
	parts, err := url.Parse(address)
	if err == nil && (parts.Scheme == "http" || parts.Scheme == "https") {
		port := parts.Port()
		if port == "" {
			port = defaultPort
			if parts.Scheme == "https" {
				port = "443"
			}
		}
		return parts.Scheme, net.JoinHostPort(parts.Hostname(), port)
	}
	if !strings.Contains(address, ":") || strings.HasPrefix(address, "[") && strings.HasSuffix(address, "]") {
		return "", address + ":" + defaultPort
	}
	return "", address
}

func isLocal(address string) bool {
	if strings.HasPrefix(address, "unix:") || strings.HasPrefix(address, "unix-abstract:") {
		return true
	}
	host, _, err := net.SplitHostPort(strings.TrimPrefix(address, "dns:///"))
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

func firstOf(values ...string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}

// bearer is an API key that goes with every RPC, also over plaintext: Config.Warn tells of that.
type bearer string

func (key bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(key)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }
