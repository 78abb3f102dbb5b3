package deploy_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"
)

var metricName = regexp.MustCompile(`\bfencepost_[a-z_]+\b`)

// The programs export every metric that dashboards, alerts and scaling query.
func TestMetricsExist(t *testing.T) {
	known := knownMetrics()
	if len(known) < 20 {
		t.Fatalf("only %d metrics found in worker/metrics: has the format of prometheus.Desc changed?", len(known))
	}
	used := 0
	for _, file := range filesThatAsk(t) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(b), -1) {
			used++
			if !metricExists(known, name) {
				t.Errorf("%s asks for %s, which no program has", file, name)
			}
		}
	}
	if used < 30 {
		t.Errorf("only %d uses of metrics found", used)
	}
	for _, wrong := range []string{"fencepost_no_such_total", "fencepost_lock_held_bucket"} {
		if metricExists(known, wrong) {
			t.Errorf("%s passes for a metric", wrong)
		}
	}
}

// filesThatAsk returns the files of this directory with queries.
func filesThatAsk(t *testing.T) (files []string) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err == nil && (ext == ".yaml" || ext == ".yml" || ext == ".json") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// knownMetrics maps the name of each metric to its description.
func knownMetrics() map[string]string {
	known := map[string]string{}
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for _, c := range []prometheus.Collector{metrics.New(), metrics.NewStore(), metrics.Publisher(func() queue.PublisherStats { return queue.PublisherStats{} })} {
		ch := make(chan *prometheus.Desc)
		go func() {
			c.Describe(ch)
			close(ch)
		}()
		for d := range ch {
			known[name.FindStringSubmatch(d.String())[1]] = d.String()
		}
	}
	// Those of fencepost serve are in a package that this one cannot import.
	source, err := os.ReadFile("../cmd/internal/api/health.go")
	if err != nil {
		panic(err)
	}
	for _, m := range regexp.MustCompile(`Name: "(fencepost_http_[a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		known[m[1]] = m[1]
	}
	return known
}

// metricExists also knows the series of histograms.
func metricExists(known map[string]string, name string) bool {
	if _, ok := known[name]; ok {
		return true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, cut := strings.CutSuffix(name, suffix); cut && known[base] != "" {
			return strings.HasSuffix(base, "_duration_seconds") || strings.HasSuffix(base, "_wait_seconds") || base == "fencepost_http_request_seconds" || base == "fencepost_batch_messages" // the histograms
		}
	}
	return false
}

// Queries take the rate of counters and histograms, and of nothing else.
func TestRatesAreOfCounters(t *testing.T) {
	rate := regexp.MustCompile(`(rate|increase)\((fencepost_[a-z_]+)`)
	for _, file := range filesThatAsk(t) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for _, m := range rate.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`_(total|bucket|sum|count)$`).MatchString(m[2]) {
				t.Errorf("%s: %s of %s, which is no counter", file, m[1], m[2])
			}
		}
		for _, name := range metricName.FindAllString(rate.ReplaceAllString(text, ""), -1) {
			if strings.HasSuffix(name, "_total") {
				t.Errorf("%s: %s is a counter, ask for its rate or increase", file, name)
			}
		}
	}
}

// The command in kubernetes/README.md makes of the alerts an object for the Prometheus operator.
func TestAlertsForTheOperator(t *testing.T) {
	readme, err := os.ReadFile("kubernetes/README.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^\$ (\(printf .*alerts\.yml\)) \| kubectl -n fencepost apply -f -$`).FindSubmatch(readme)
	if command == nil {
		t.Fatal("there is no such command")
	}
	cmd := exec.Command("sh", "-c", string(command[1]))
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	alerts, err := os.ReadFile("prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var rule struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Spec       any
	}
	var want any
	if err := errors.Join(yaml.Unmarshal(out, &rule), yaml.Unmarshal(alerts, &want)); err != nil {
		t.Fatal(err)
	}
	if rule.APIVersion != "monitoring.coreos.com/v1" || rule.Kind != "PrometheusRule" || rule.Metadata.Name != "fencepost" || !reflect.DeepEqual(rule.Spec, want) {
		t.Errorf("it makes\n%s", out)
	}
}

// Queries about the time of requests over HTTP leave out probes and tails, which say nothing about it. An alert asks about it, too: when the
// database or the store is slow, requests wait for a long time before they fail.
func TestTimeOfRequests(t *testing.T) {
	times := regexp.MustCompile(`fencepost_http_request_seconds_[a-z]+(\{[^}]*\})?`)
	found := map[string]int{}
	for _, file := range filesThatAsk(t) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range times.FindAllStringSubmatch(strings.ReplaceAll(string(b), `\"`, `"`), -1) {
			found[file]++
			if want := `{path!~"/livez|/readyz|.*/tail"}`; m[1] != want {
				t.Errorf("%s: %s, want %s", file, m[0], want)
			}
		}
	}
	if found["prometheus/alerts.yml"] != 1 || found["grafana/fencepost.json"] < 2 {
		t.Errorf("want an alert and panels, found %v", found)
	}
}

// Panels of the dashboard do not overlap, and have a query.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("grafana/fencepost.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID    string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || len(d.Panels) == 0 {
		t.Fatal("no panels, or no uid, without which each import makes another dashboard")
	}
	// Files are in a store, as in the Compose file and the chart, or on a volume. Both fill up, and slow everything down.
	for _, name := range []string{"fencepost_store_requests_total", "fencepost_store_request_duration_seconds_bucket", "fencepost_volume_free_bytes"} {
		if !strings.Contains(string(b), name) {
			t.Errorf("no panel asks for %s", name)
		}
	}
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q: id %d is taken", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && (len(p.Targets) == 0 || p.Targets[0].Expr == "") {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok || x >= 24 {
					t.Fatalf("panel %q lies over %q, or beside the page", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// Every runbook that an alert names is a section of its document, and the table of symptoms leads there, too.
func TestRunbooksExist(t *testing.T) {
	b, err := os.ReadFile("prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := regexp.MustCompile(`(?m)- alert: `).FindAll(b, -1)
	runbooks := regexp.MustCompile(`(?m)runbook: (\S+)#(\S+)$`).FindAllStringSubmatch(string(b), -1)
	if len(runbooks) == 0 || len(runbooks) != len(alerts) {
		t.Errorf("%d alerts, %d runbooks", len(alerts), len(runbooks))
	}
	for _, m := range runbooks {
		if !hasSection(t, "../"+m[1], m[2]) {
			t.Errorf("%s has no section %s", m[1], m[2])
		}
	}
	if hasSection(t, "../docs/operations.md", "no-such-section") {
		t.Error("every section passes for one that is there")
	}
	rows := alertRows(t)
	for _, m := range regexp.MustCompile(`(?s)- alert: (\S+)\n.*?runbook: \S+#(\S+)\n`).FindAllStringSubmatch(string(b), -1) {
		if rows[m[1]] != m[2] {
			t.Errorf("the table of docs/operations.md leads from %s to section %q, and the alert to %q", m[1], rows[m[1]], m[2])
		}
	}
	// Also the links inside the documents.
	link := regexp.MustCompile(`\]\(([^)#:]*)#([a-z0-9-]+)\)`)
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, doc := range append(docs, "README.md", "kubernetes/README.md", "../README.md", "../clients/python/README.md", "../clients/http/README.md", "../examples/README.md") {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			target := doc
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(doc), m[1])
			}
			if !hasSection(t, target, m[2]) {
				t.Errorf("%s: %s has no section %s", doc, target, m[2])
			}
		}
	}
}

// alertRows maps each alert that a table of the runbooks names to the first section that its row leads to.
func alertRows(t *testing.T) map[string]string {
	b, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\|.*`+"`Fencepost.*$").FindAllString(string(b), -1) {
		section := regexp.MustCompile(`\]\(#([a-z0-9-]+)\)`).FindStringSubmatch(row)
		for _, alert := range regexp.MustCompile("`(Fencepost[A-Za-z]+)`").FindAllStringSubmatch(row, -1) {
			if len(section) > 0 {
				rows[alert[1]] = section[1]
			}
		}
	}
	return rows
}

// hasSection looks for a heading by the anchor that Markdown renderers create for it.
func hasSection(t *testing.T, doc, anchor string) bool {
	t.Helper()
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(b), -1) {
		slug := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(h[1]), "")
		if strings.ReplaceAll(slug, " ", "-") == anchor {
			return true
		}
	}
	return false
}
