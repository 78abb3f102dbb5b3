package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
)

const envLiar = "FENCEPOST_TEST_LIAR" // makes this binary a publisher that breaks a rule

// conforms runs fencepost conform on a publisher. The bounds allow for a machine that is busy with other tests.
func conforms(t *testing.T, rounds int, command ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	url := mongotest.URI(t)
	if !strings.Contains(url, "/?") {
		url += "/?"
	}
	args := []string{"conform", "publisher", "--url", url + "&serverSelectionTimeoutMS=60000", "--timeout", "5m", "--rounds", fmt.Sprint(rounds), "--"}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "fencepost"), append(args, command...)...)
	cmd.Env = kit.Env()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || ctx.Err() != nil {
		t.Fatalf("%v, %v\n%s", err, ctx.Err(), out)
	}
	return result{code: cmd.ProcessState.ExitCode(), stdout: string(out)}
}

// everyFault is the number of kinds of faults: in this many rounds each is played once.
const everyFault = 7

// TestOurPublisherConforms: the Go publisher follows the rules of docs/protocol.md.
func TestOurPublisherConforms(t *testing.T) {
	t.Parallel()
	adapter := filepath.Join(t.TempDir(), "line-publisher")
	if out, err := exec.Command("go", "build", "-o", adapter, "../examples/line-publisher").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	says(t, conforms(t, everyFault, adapter), 0, "the publisher conforms")
}

// TestPythonClientConforms also runs the client's own tests.
func TestPythonClientConforms(t *testing.T) {
	t.Parallel()
	python := kit.Python(t)
	tests := exec.Command(python, "-B", "-m", "unittest")
	tests.Dir = "../clients/python"
	tests.Env = append(kit.Env(), mongotest.EnvURI+"="+mongotest.URI(t))
	if out, err := tests.CombinedOutput(); err != nil || !regexp.MustCompile(`Ran [3-9]\d tests(?s:.*)\nOK\n`).Match(out) {
		t.Errorf("unittest: %v\n%s", err, out)
	}
	says(t, conforms(t, everyFault, python, "-B", "../clients/python/conform_adapter.py"), 0, "the publisher conforms")
}

// TestConformFindsLiars: publishers that break a rule are detected, and the broken rule is named.
func TestConformFindsLiars(t *testing.T) {
	t.Parallel()
	for lie, want := range map[string]struct {
		rounds int
		says   []string
	}{
		"new IDs":     {everyFault, []string{"times, as", "was sent before the server had confirmed earlier ones"}},
		"no majority": {1, []string{`has the write concern {"w":1}`}},
		"too early":   {1, []string{"before the server had confirmed that it is stored", "was not rejected, although publishing was paused", "while its backlog limit was 5"}},
	} {
		t.Run(lie, func(t *testing.T) {
			t.Parallel()
			r := conforms(t, want.rounds, "env", envLiar+"="+lie, os.Args[0])
			says(t, r, 3, append(want.says, "the publisher does not conform")...)
		})
	}
}

// TestConformWithoutAPublisher: a program that is not a publisher gets a useful error, and so does an invalid call.
func TestConformWithoutAPublisher(t *testing.T) {
	t.Parallel()
	says(t, conforms(t, 1, "sh", "-c", "echo hello; exec >&2; echo 'no such host'; exit 7"), 3, `it printed "hello"`, "exit status 7", "no such host")
	server := mongotest.URI(t)
	for _, args := range [][]string{
		{"--url", server}, {"--url", server, "--", "no-such-program"}, {"--", "true"}, {"--url", "sqlite://x", "--", "true"},
		{"--url", "mongodb://a,b/", "--", "true"}, {"--url", "mongodb://a/?tls=true", "--", "true"}, {"--url", server, "--rounds", "0", "--", "true"},
	} {
		if r := run(t, nil, "fencepost", append([]string{"conform", "publisher"}, args...)...); r.code != 2 {
			t.Errorf("%q: %v", args, r)
		}
	}
}

// liar is a correct publisher, apart from one lie.
type liar struct {
	lie      string
	messages *mongo.Collection
	producer map[string]uint64
	n        map[string]uint64
}

func liarProcess(lie string) error {
	uri := os.Getenv("FENCEPOST_URL")
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetRetryWrites(false).SetServerSelectionTimeout(time.Minute))
	if err != nil {
		return err
	}
	concern := &writeconcern.WriteConcern{W: "majority", Journal: new(true)}
	if lie == "no majority" {
		concern = writeconcern.W1()
	}
	database := regexp.MustCompile(`fencepost_conform_\w+`).FindString(uri)
	p := &liar{lie, client.Database(database).Collection("messages", options.Collection().SetWriteConcern(concern)), map[string]uint64{}, map[string]uint64{}}
	lines := bufio.NewReader(os.Stdin)
	for seed := uint64(time.Now().UnixNano()); ; {
		text, err := lines.ReadString('\n')
		if err != nil {
			return nil
		}
		var l struct {
			Line    int
			Type    string
			Payload []byte
			Headers map[string]string
			Key     string
		}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return err
		}
		if l.Key != "" {
			l.Headers[queue.KeyHeader] = l.Key
		}
		if m := (queue.Message{Type: l.Type, Payload: l.Payload, Headers: l.Headers}); m.Validate() != nil {
			fmt.Println("rejected", l.Line)
			continue
		}
		if p.producer[l.Type] == 0 {
			seed++
			p.producer[l.Type] = seed
		}
		p.publish(l.Line, l.Type, l.Payload, l.Headers)
	}
}

func (p *liar) publish(line int, typ string, payload []byte, headers map[string]string) {
	var id queue.ID
	next := func() bson.D {
		p.n[typ]++
		id = queue.NewID(time.UnixMilli(1_700_000_000_000), p.producer[typ], p.n[typ])
		list := bson.A{}
		for k, v := range headers {
			list = append(list, k, v)
		}
		return bson.D{{Key: "_id", Value: typ + "/" + id.String()}, {Key: "b", Value: bson.Binary{Data: payload}}, {Key: "h", Value: list}}
	}
	doc := next()
	if p.lie == "too early" {
		fmt.Println("ok", line, id)
	}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err := p.messages.InsertOne(ctx, doc)
		cancel()
		if err == nil || mongo.IsDuplicateKeyError(err) {
			break
		}
		if p.lie == "new IDs" {
			doc = next()
		}
	}
	if p.lie != "too early" {
		fmt.Println("ok", line, id)
	}
}
