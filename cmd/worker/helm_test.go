package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"text/template"

	"go.yaml.in/yaml/v3"
)

// The chart in deploy/helm. Helm itself is a large program, so the templates are rendered here with the few functions that they use.
// Where Helm is installed (make helm), it renders the chart, too, and must give the same result.

const chart = deployed + "/helm"

// manifest is an API object in a file.
type manifest = map[string]any

// Without settings the chart equals the layout kubernetes/store, and without a store it equals kubernetes/shared.
func TestHelmChartIsTheManifests(t *testing.T) {
	for _, c := range []struct{ values, like string }{
		{"", "store"},
		{"store: {address: ''}", "shared"},
	} {
		want := map[string]manifest{}
		for _, m := range decodeAll(t, readFile(t, deployed+"/kubernetes/"+c.like+"/worker.yaml")) {
			want[name(m)] = m
		}
		got := render(t, c.values)
		if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
			t.Errorf("with %q the chart has %v, and %s has %v", c.values, slices.Sorted(maps.Keys(got)), c.like, slices.Sorted(maps.Keys(want)))
		}
		for name, m := range want {
			for _, d := range differences(name, plain(got[name]), plain(m)) {
				t.Errorf("with %q unlike kubernetes/%s: %s", c.values, c.like, d)
			}
		}
	}
}

// Optional parts equal those in the other files of kubernetes.
func TestHelmChartsOptions(t *testing.T) {
	got := render(t, "{networkPolicy: {enabled: true}, podMonitor: {enabled: true, interval: 15s}}")
	for kind, file := range map[string]string{"NetworkPolicy": "networkpolicy.yaml", "PodMonitor": "addons/podmonitor.yaml"} {
		want := decodeAll(t, readFile(t, deployed+"/kubernetes/"+file))[0]
		for _, d := range differences(kind, plain(got[kind+" fencepost-worker"]), plain(want)) {
			t.Errorf("unlike kubernetes/%s: %s", file, d)
		}
	}

	// So do those of fencepost serve.
	got = render(t, "{networkPolicy: {enabled: true}, serve: {enabled: true, podMonitor: {enabled: true}}}")
	var want []manifest
	for _, file := range []string{"serve/serve.yaml", "addons/podmonitor-serve.yaml"} {
		want = append(want, decodeAll(t, bytes.ReplaceAll(readFile(t, deployed+"/kubernetes/"+file), []byte("serve.fencepost.svc"), []byte("serve.default.svc")))...)
	}
	want = append(want, decodeAll(t, readFile(t, deployed+"/kubernetes/networkpolicy.yaml"))[1])
	for _, m := range want {
		for _, d := range differences(name(m), plain(got[name(m)]), plain(m)) {
			t.Errorf("unlike kubernetes/serve: %s", d)
		}
	}
	if extra := len(got) - len(render(t, "networkPolicy: {enabled: true}")); extra != len(want) {
		t.Errorf("serve is %d objects, want %d", extra, len(want))
	}
	for values, want := range map[string]string{
		`{tls: "", podMonitor: {enabled: true, token: mine}}`: "[map[authorization:map[credentials:map[key:token name:mine]] interval:1m path:/metrics port:http]]",
		`{podMonitor: {enabled: true, ca: ""}}`:               "[map[authorization:map[credentials:map[key:token name:fencepost-metrics]] interval:1m path:/metrics port:https scheme:https tlsConfig:map[serverName:fencepost-serve.default.svc]]]",
	} {
		m := render(t, "{podMonitor: {interval: 1m, labels: {release: prometheus}}, serve: {enabled: true, "+values[1:]+"}")["PodMonitor fencepost-serve"]
		if !strings.Contains(fmt.Sprint(m["metadata"]), "release:prometheus") {
			t.Errorf("with %s no label of podMonitor: %v", values, m)
		}
		if spec, _ := m["spec"].(manifest); fmt.Sprint(spec["podMetricsEndpoints"]) != want {
			t.Errorf("with %s the endpoints are %v, want %s", values, spec["podMetricsEndpoints"], want)
		}
	}
	text, err := yaml.Marshal(render(t, `
serve: {enabled: true, replicas: 4, tokens: mine, tls: "", hosts: [api.example.com], stopSeconds: 60, args: ["--max-connections=9"], goMemLimit: 1GiB, clientNamespace: clients,
  resources: {limits: {memory: 2Gi}}}
store: {credentials: aws}
networkPolicy: {enabled: true}
imagePullSecrets: [pull]`)["Deployment fencepost-serve"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"replicas: 4", "secretName: mine", "--listen-host=api.example.com", "--stop-timeout=60s", "terminationGracePeriodSeconds: 75", "--max-connections=9", "value: 1GiB", "memory: 2Gi",
		"scheme: HTTP\n", "name: aws", "name: pull"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is nowhere in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "tls") {
		t.Errorf("there is TLS in\n%s", text)
	}

	// The group of the volumes can be another one than that of the processes, or left to the cluster with it.
	for values, want := range map[string][2]string{
		"{fsGroup: 2000, fsGroupChangePolicy: Always}": {"fsGroup:2000 fsGroupChangePolicy:Always runAsGroup:65532", "fsGroup:2000 fsGroupChangePolicy:Always runAsGroup:65532"},
		"{runAsUser: null, runAsGroup: null}":          {"map[fsGroupChangePolicy:OnRootMismatch runAsNonRoot:true s", "map[runAsNonRoot:true s"},
	} {
		got := render(t, "{store: {address: ''}, serve: {enabled: true}, podSecurityContext: "+values+"}")
		for i, name := range []string{"worker", "serve"} {
			spec := got["Deployment fencepost-"+name]["spec"].(manifest)["template"].(manifest)["spec"].(manifest)
			if got := fmt.Sprint(spec["securityContext"]); !strings.Contains(got, want[i]) {
				t.Errorf("with %s the security context of %s is %s, want %s", values, name, got, want[i])
			}
		}
	}

	// Without a number the replicas are left to an autoscaler; 0 would stop them all.
	for name, m := range render(t, "{replicas: null, serve: {enabled: true, replicas: null}}") {
		if replicas, ok := m["spec"].(manifest)["replicas"]; ok {
			t.Errorf("%s has %v replicas, want none", name, replicas)
		}
	}

	// All other settings take effect where they belong.
	digest := "sha256:" + strings.Repeat("0", 64)
	got = render(t, `
image: {repository: r/f, digest: "`+digest+`", pullPolicy: Always}
imagePullSecrets: [pull]
url: {secret: db, key: address}
store: {address: "", secret: files, key: address, credentials: aws}
types: [orders, "audit-*"]
replicas: 5
graceSeconds: 60
args: ["--max-types=4"]
env: [{name: AWS_CA_BUNDLE, value: /ca/ca.pem}]
serviceAccount: writer
goMemLimit: 2GiB
podAnnotations: {a: b}
podLabels: {team: shop}
nodeSelector: {disk: fast}
tolerations: [{operator: Exists}]
priorityClassName: high
extraVolumes: [{name: ca, secret: {secretName: ca}}]
extraVolumeMounts: [{name: ca, mountPath: /ca}]
podDisruptionBudget: {maxUnavailable: 2}`)
	if text, err = yaml.Marshal(got); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"image: r/f@" + digest, "imagePullPolicy: Always", "- name: pull", "name: db", "name: files", "key: address", "name: aws",
		"- --type=orders", "- --type=audit-*", "replicas: 5", "- --grace=60s", "terminationGracePeriodSeconds: 75", "- --max-types=4", "value: /ca/ca.pem",
		"serviceAccountName: writer", "automountServiceAccountToken: true", "value: 2GiB", "a: b", "team: shop", "disk: fast", "operator: Exists",
		"priorityClassName: high", "secretName: ca", "mountPath: /ca", "maxUnavailable: 2"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is nowhere in\n%s", want, text)
		}
	}
	for _, not := range []string{"--all-types", "claimName", "podAffinity"} {
		if strings.Contains(string(text), not) {
			t.Errorf("%q is in\n%s", not, text)
		}
	}
	volume := render(t, "{store: {address: ''}, volume: {claim: mine}}")
	if len(volume) != 1 || !strings.Contains(fmt.Sprint(volume), "claimName:mine") {
		t.Errorf("with a claim that is there, want a Deployment that uses it alone: %v", volume)
	}
	sized := render(t, "{store: {address: ''}, volume: {size: 5Gi, storageClass: fast}, podDisruptionBudget: {enabled: true}}")
	if text := fmt.Sprint(sized["PersistentVolumeClaim fencepost-files"]); len(sized) != 2 || !strings.Contains(text, "storage:5Gi") || !strings.Contains(text, "storageClassName:fast") {
		t.Errorf("want a claim, and no budget: %v", sized)
	}
	if off := render(t, "podDisruptionBudget: {enabled: false}"); len(off) != 1 {
		t.Errorf("want a Deployment alone: %v", off)
	}
}

// Every value has a type, and a template uses each.
func TestHelmValues(t *testing.T) {
	var values, schema map[string]any
	if err := yaml.Unmarshal(readFile(t, chart+"/values.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(readFile(t, chart+"/values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	templates := ""
	for _, file := range templateFiles(t) {
		templates += string(readFile(t, file))
	}
	var walk func(path string, values, schema map[string]any)
	walk = func(path string, values, schema map[string]any) {
		types := schema["properties"].(map[string]any)
		if schema["additionalProperties"] != false {
			t.Errorf("the schema takes anything in %s", path)
		}
		for key, v := range values {
			s, ok := types[key].(map[string]any)
			if !ok {
				t.Errorf("the schema does not know %s%s", path, key)
				continue
			}
			if sub, ok := v.(map[string]any); ok && s["properties"] != nil {
				walk(path+key+".", sub, s)
				continue
			}
			if !strings.Contains(templates, ".Values."+path+key) {
				t.Errorf("no template uses %s%s", path, key)
			}
		}
		for key := range types {
			if _, ok := values[key]; !ok && key != "global" { // Helm's own
				t.Errorf("the schema knows %s%s, and values.yaml does not have it", path, key)
			}
		}
	}
	walk("", values, schema)
}

// helmTemplate renders the chart with Helm. A Helm that was built from source assumes Kubernetes 1.20 unless told otherwise, and refuses the chart.
func helmTemplate(helm string, args ...string) *exec.Cmd {
	return exec.Command(helm, append([]string{"template", "--kube-version", "1.30", "fencepost", chart}, args...)...)
}

// Helm accepts the chart, and refuses values that the schema does not have.
func TestHelmTakesTheChart(t *testing.T) {
	helm, err := exec.LookPath("helm")
	if err != nil {
		t.Skip("helm is not in PATH; make helm builds it")
	}
	if out, err := exec.Command(helm, "lint", "--strict", chart).CombinedOutput(); err != nil {
		t.Errorf("helm lint: %v\n%s", err, out)
	}
	for _, wrong := range []string{"replicas=many", "store.address=mongo:", "store.address=mongodb://bob:pw@db1/x", "storage=mongodb:", "podDisruptionBudget.maxUnavailable=0", "image.digest=latest"} {
		if out, err := helmTemplate(helm, "--set", wrong).CombinedOutput(); err == nil {
			t.Errorf("helm takes %s:\n%s", wrong, out)
		}
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decodeAll(t *testing.T, b []byte) (all []manifest) {
	t.Helper()
	for d := yaml.NewDecoder(bytes.NewReader(b)); ; {
		var m manifest
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, b)
		}
		if m != nil {
			all = append(all, m)
		}
	}
}

func name(m manifest) string {
	return fmt.Sprint(m["kind"], " ", m["metadata"].(map[string]any)["name"])
}

func templateFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(chart + "/templates/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	return files
}

// render returns the objects of a release named fencepost with values over those of the chart, by kind and name.
func render(t *testing.T, values string) map[string]manifest {
	t.Helper()
	var all, over, about map[string]any
	for into, b := range map[*map[string]any][]byte{&all: readFile(t, chart+"/values.yaml"), &over: []byte(values), &about: readFile(t, chart+"/Chart.yaml")} {
		if err := yaml.Unmarshal(b, into); err != nil {
			t.Fatal(err)
		}
	}
	merge(all, over)
	data := map[string]any{"Values": all, "Chart": map[string]any{"AppVersion": about["appVersion"], "Name": about["name"]},
		"Release": map[string]any{"Name": "fencepost", "Namespace": "default", "Service": "Helm"}}
	root := template.New("chart").Option("missingkey=error")
	root.Funcs(functions(root))
	files := templateFiles(t)
	for _, file := range files {
		if _, err := root.New(filepath.Base(file)).Parse(string(readFile(t, file))); err != nil {
			t.Fatal(err)
		}
	}
	objects := map[string]manifest{}
	for _, file := range files {
		var out bytes.Buffer
		if err := root.ExecuteTemplate(&out, filepath.Base(file), data); err != nil {
			t.Fatalf("with %q: %v", values, err)
		}
		if filepath.Ext(file) == ".yaml" {
			for _, m := range decodeAll(t, out.Bytes()) {
				objects[name(m)] = m
			}
		}
	}
	sameInHelm(t, values, objects)
	return objects
}

// sameInHelm compares with the output of Helm, where it is installed.
func sameInHelm(t *testing.T, values string, want map[string]manifest) {
	t.Helper()
	helm, err := exec.LookPath("helm")
	if err != nil {
		return
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := helmTemplate(helm, "--values", file)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm template with %q: %v", values, err)
	}
	got := map[string]manifest{}
	for _, m := range decodeAll(t, out) {
		got[name(m)] = m
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("with %q helm renders %v\nand this test %v", values, got, want)
	}
}

// functions are the functions of Helm that the templates use.
func functions(root *template.Template) template.FuncMap {
	return template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := root.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
		"toYaml": func(v any) (string, error) {
			b, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(b), "\n"), err
		},
		"nindent": func(n int, s string) string {
			indent := "\n" + strings.Repeat(" ", n)
			return indent + strings.ReplaceAll(s, "\n", indent)
		},
		"quote":      func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
		"trunc":      func(n int, s string) string { return s[:min(n, len(s))] },
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"default": func(d, v any) any {
			if v == nil || reflect.ValueOf(v).IsZero() {
				return d
			}
			return v
		},
		"hasKey": func(m map[string]any, key string) bool { _, ok := m[key]; return ok },
		"int":    func(v int) int { return v },
		"add":    func(a, b int) int { return a + b },
	}
}

// merge merges over into values, like Helm: null removes a default.
func merge(values, over map[string]any) {
	for key, v := range over {
		below, isMap := values[key].(map[string]any)
		if sub, ok := v.(map[string]any); ok && isMap {
			merge(below, sub)
		} else if v == nil {
			delete(values, key)
		} else {
			values[key] = v
		}
	}
}

// plain leaves out the fields that only a release has, and those that the kustomization adds to the manifests.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := map[string]any{}
		for key, value := range v {
			switch key {
			case "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "app.kubernetes.io/component", "helm.sh/resource-policy", "imagePullPolicy":
				continue
			case "image":
				value = strings.TrimSuffix(strings.TrimPrefix(value.(string), "registry.example.com/"), ":latest")
			}
			if p := plain(value); key != "annotations" || len(p.(map[string]any)) > 0 {
				m[key] = p
			}
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i := range v {
			l[i] = plain(v[i])
		}
		return l
	}
	return v
}

// differences returns where two values differ.
func differences(where string, got, want any) (all []string) {
	g, isMap := got.(map[string]any)
	w, alsoMap := want.(map[string]any)
	gl, isList := got.([]any)
	wl, alsoList := want.([]any)
	switch {
	case isMap && alsoMap:
		keys := maps.Clone(g)
		maps.Copy(keys, w)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			all = append(all, differences(where+"."+key, g[key], w[key])...)
		}
	case isList && alsoList && len(gl) == len(wl):
		for i := range gl {
			all = append(all, differences(fmt.Sprintf("%s[%d]", where, i), gl[i], wl[i])...)
		}
	case !reflect.DeepEqual(got, want):
		all = append(all, fmt.Sprintf("%s is %v, want %v", where, got, want))
	}
	return all
}
