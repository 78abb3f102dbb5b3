package mongotest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Secure says what a server of [NewSecure] requires of its clients.
type Secure struct {
	User, Password string // SCRAM; letters, digits and '-' only
	Cert, Key, CA  []byte // PEM: its own certificate and key, and the authority of its clients' certificates
}

// secureEntrypoint is entrypoint.sh of integration/mongo-image with authentication, only TLS from outside, and a user.
const secureEntrypoint = `set -euo pipefail
sed -e 's/--no-auth //' /usr/local/bin/entrypoint.sh >/tmp/entrypoint.sh
(
  until psql -h /run/postgresql -U postgres -v ON_ERROR_STOP=1 -c "SELECT documentdb_api.create_user('{
      \"createUser\": \"$SECURE_USER\", \"pwd\": \"$SECURE_PASSWORD\",
      \"roles\": [{\"role\": \"readWriteAnyDatabase\", \"db\": \"admin\"}, {\"role\": \"clusterAdmin\", \"db\": \"admin\"}]}')" 2>/dev/null; do
    sleep 0.2
  done
) &
exec bash /tmp/entrypoint.sh
`

// NewSecure starts a server for this test alone that requires TLS, a client certificate and a password, and returns its host:port.
// The certificate has to be valid for 127.0.0.1. uri returns the URI for an address; NewSecure returns once the server answers
// there. It needs the image of integration/mongo-image in a Docker daemon on this machine; without it, the test is skipped after a
// loud line.
func NewSecure(t testing.TB, s Secure, uri func(addr string) string) (addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	skip := func(why any) {
		fmt.Fprintf(os.Stderr, "!!! NOT RUN: %s of %s, as no server with authentication is available (%v)\n", t.Name(), thisPackage(), why)
		t.Skipf("no server with authentication: %v", why)
	}
	d, err := newDocker(ctx)
	if err != nil {
		skip(err)
	}
	defer d.idle()
	if d.host != "127.0.0.1" {
		skip("the Docker daemon is on another machine")
	}
	image, err := buildScript(ctx, nil, "--tag")
	if err != nil || !d.hasImage(ctx, image) {
		skip("integration/mongo-image/build.sh has not been run")
	}
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := freePort() // required, but unused
	if err != nil {
		t.Fatal(err)
	}
	listen, how := d.listenOn(port)
	const dir = "/var/lib/secure/"
	var files []testcontainers.ContainerFile
	for name, content := range map[string][]byte{"cert": s.Cert, "key": s.Key, "ca": s.CA, "entrypoint": []byte(secureEntrypoint)} {
		files = append(files, testcontainers.ContainerFile{Reader: bytes.NewReader(content), ContainerFilePath: dir + name, FileMode: 0o644})
	}
	ctr, err := testcontainers.Run(ctx, image,
		testcontainers.WithLogger(tclog.NewNoopLogger()),
		testcontainers.WithFiles(files...),
		testcontainers.WithEntrypoint("bash", dir+"entrypoint"),
		testcontainers.WithEnv(map[string]string{
			"SECURE_USER": s.User, "SECURE_PASSWORD": s.Password,
			"FENCEPOST_LISTEN": net.JoinHostPort("127.0.0.1", plain), "FERRETDB_LISTEN_TLS": listen,
			"FERRETDB_LISTEN_TLS_CERT_FILE": dir + "cert", "FERRETDB_LISTEN_TLS_KEY_FILE": dir + "key", "FERRETDB_LISTEN_TLS_CA_FILE": dir + "ca",
		}),
		how,
		testcontainers.WithLabels(map[string]string{ownerLabel: owner()}))
	e := &containerEngine{docker: d}
	if ctr != nil {
		e.id = ctr.GetContainerID()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
			defer cancel()
			_, _ = d.api.ContainerRemove(ctx, e.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			d.idle()
		})
	}
	if err != nil {
		t.Fatalf("mongotest: start a server with authentication: %v", err)
	}
	addr = net.JoinHostPort(d.host, port)
	for {
		err := ping(ctx, uri(addr))
		if err == nil {
			return addr
		}
		if perr := pollPause(ctx, 200*time.Millisecond); perr != nil || !e.alive(ctx) {
			t.Fatalf("mongotest: the server with authentication does not answer: %v; its last output: %s", err, e.logs(context.WithoutCancel(ctx)))
		}
	}
}

// ping opens an authenticated connection.
func ping(ctx context.Context, uri string) error {
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(5 * time.Second))
	if err != nil {
		return err
	}
	defer client.Disconnect(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was checked out
	_, err = client.ListDatabaseNames(ctx, struct{}{})
	return err
}
