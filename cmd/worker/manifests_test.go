package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/cmd/internal/workercmd"
	"go.yaml.in/yaml/v3"
)

// The parts of the APIs that the manifests use. A field that is not here is a mistake, or new: look it up in the API's
// reference. Decoded with KnownFields.
type (
	labels map[string]string

	metadata struct {
		Name   string
		Labels labels
	}
	selector struct {
		MatchLabels labels `yaml:"matchLabels"`
	}
	claimSpec struct {
		AccessModes []string `yaml:"accessModes"`
		Resources   struct{ Requests map[string]string }
	}
	workload struct {
		Replicas    int
		ServiceName string `yaml:"serviceName"`
		Management  string `yaml:"podManagementPolicy"`
		Selector    selector
		Strategy    struct {
			Type          string
			RollingUpdate struct {
				MaxSurge       int `yaml:"maxSurge"`
				MaxUnavailable int `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		}
		Template struct {
			Metadata metadata
			Spec     podSpec
		}
		VolumeClaimTemplates []struct {
			Metadata metadata
			Spec     claimSpec
		} `yaml:"volumeClaimTemplates"`
	}
	podSpec struct {
		AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot        bool                  `yaml:"runAsNonRoot"`
			RunAsUser           int                   `yaml:"runAsUser"`
			RunAsGroup          int                   `yaml:"runAsGroup"`
			FSGroup             int                   `yaml:"fsGroup"`
			FSGroupChangePolicy string                `yaml:"fsGroupChangePolicy"`
			SeccompProfile      struct{ Type string } `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		Affinity struct {
			PodAffinity struct {
				Required []struct {
					TopologyKey   string   `yaml:"topologyKey"`
					LabelSelector selector `yaml:"labelSelector"`
				} `yaml:"requiredDuringSchedulingIgnoredDuringExecution"`
			} `yaml:"podAffinity"`
		}
		TopologySpreadConstraints []struct {
			MaxSkew           int      `yaml:"maxSkew"`
			TopologyKey       string   `yaml:"topologyKey"`
			WhenUnsatisfiable string   `yaml:"whenUnsatisfiable"`
			LabelSelector     selector `yaml:"labelSelector"`
		} `yaml:"topologySpreadConstraints"`
		Containers []kubeContainer
		Volumes    []struct {
			Name  string
			Claim struct {
				Name string `yaml:"claimName"`
			} `yaml:"persistentVolumeClaim"`
			ConfigMap struct{ Name string } `yaml:"configMap"`
			Secret    struct {
				Name string `yaml:"secretName"`
				Mode int    `yaml:"defaultMode"`
			}
		}
	}
	kubeContainer struct {
		Name, Image string
		Command     []string
		Args        []string
		Env         []kubeEnv
		Ports       []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe    probe `yaml:"startupProbe"`
		ReadinessProbe  probe `yaml:"readinessProbe"`
		LivenessProbe   probe `yaml:"livenessProbe"`
		Resources       struct{ Requests, Limits map[string]string }
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		VolumeMounts []volumeMount `yaml:"volumeMounts"`
	}
	volumeMount struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	}
	kubeEnv struct {
		Name, Value string
		ValueFrom   struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
			FieldRef     struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	}
	probe struct {
		HTTPGet          struct{ Path, Port, Scheme string } `yaml:"httpGet"`
		PeriodSeconds    int                                 `yaml:"periodSeconds"`
		TimeoutSeconds   int                                 `yaml:"timeoutSeconds"`
		FailureThreshold int                                 `yaml:"failureThreshold"`
	}
	service struct {
		ClusterIP string `yaml:"clusterIP"`
		Selector  labels
		Ports     []struct {
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
	}
	budget struct {
		MaxUnavailable             int    `yaml:"maxUnavailable"`
		UnhealthyPodEvictionPolicy string `yaml:"unhealthyPodEvictionPolicy"`
		Selector                   selector
	}
	peer struct {
		NamespaceSelector selector `yaml:"namespaceSelector"`
	}
	networkPort struct {
		Protocol string
		Port     int
	}
	networkPolicy struct {
		PodSelector selector `yaml:"podSelector"`
		PolicyTypes []string `yaml:"policyTypes"`
		Ingress     []struct {
			From  []peer
			Ports []networkPort
		}
		Egress []struct {
			To    []peer
			Ports []networkPort
		}
	}
	scaledObject struct {
		ScaleTargetRef  struct{ Name string } `yaml:"scaleTargetRef"`
		MinReplicaCount int                   `yaml:"minReplicaCount"`
		MaxReplicaCount int                   `yaml:"maxReplicaCount"`
		PollingInterval int                   `yaml:"pollingInterval"`
		Fallback        struct {
			FailureThreshold int `yaml:"failureThreshold"`
			Replicas         int
		}
		Advanced struct {
			HPA struct {
				Behavior struct {
					ScaleDown struct {
						StabilizationWindowSeconds int `yaml:"stabilizationWindowSeconds"`
						Policies                   []struct {
							Type          string
							Value         int
							PeriodSeconds int `yaml:"periodSeconds"`
						}
					} `yaml:"scaleDown"`
				}
			} `yaml:"horizontalPodAutoscalerConfig"`
		}
		Triggers []struct {
			Type       string
			MetricType string `yaml:"metricType"`
			Metadata   struct {
				ServerAddress    string `yaml:"serverAddress"`
				Threshold, Query string
			}
		}
	}
	podMonitor struct {
		Selector  selector
		Endpoints []struct {
			Port, Path, Interval, Scheme string
			TLSConfig                    struct {
				ServerName string `yaml:"serverName"`
				CA         map[string]map[string]string
			} `yaml:"tlsConfig"`
			Authorization struct{ Credentials map[string]string }
		} `yaml:"podMetricsEndpoints"`
	}
	kustomization struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Resources  []string
		Images     []struct {
			Name    string
			NewName string `yaml:"newName"`
			NewTag  string `yaml:"newTag"`
		}
	}

	object[S any] struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
		Spec       S
		Data       map[string]string // of a ConfigMap
	}
)

// pinned matches an image that cannot change.
var pinned = regexp.MustCompile(`^[a-z./-]+:[a-z0-9.]+@sha256:[0-9a-f]{64}$`)

// composeFile is the part of the Compose specification that compose.yaml uses.
type composeFile struct {
	Services map[string]composeService
	Volumes  map[string]struct{}
	Anchors  map[string]yaml.Node `yaml:",inline"`
}

type composeService struct {
	Image           string
	Profiles        []string
	Entrypoint      []string
	Command         []string
	Environment     map[string]string
	DependsOn       yaml.Node `yaml:"depends_on"`
	Scale           int
	Restart         string
	Volumes         []string
	Ports           []string
	ReadOnly        bool          `yaml:"read_only"`
	CapDrop         []string      `yaml:"cap_drop"`
	SecurityOpt     []string      `yaml:"security_opt"`
	StopGracePeriod time.Duration `yaml:"stop_grace_period"`
	Healthcheck     struct {
		Test        []string
		Interval    time.Duration
		Timeout     time.Duration
		StartPeriod time.Duration `yaml:"start_period"`
		Retries     int
	}
}

const deployed = "../../deploy"

// TestManifests checks that the statements of the files in deploy about Fencepost and about each other are true.
func TestManifests(t *testing.T) {
	for _, problem := range problems(os.DirFS(deployed)) {
		t.Error(problem)
	}
}

// The check above finds each of these mistakes.
func TestManifestMistakesAreFound(t *testing.T) {
	for _, m := range []struct{ file, old, new, want string }{
		{"kubernetes/shared/worker.yaml", "readinessProbe:", "readynessProbe:", "readynessProbe not found"},
		{"kubernetes/shared/worker.yaml", "replicas: 3", "replicas: 3\n  replicas: 4", "already defined"},
		{"kubernetes/shared/worker.yaml", "--all-types,", "--every-type,", "unknown flag: --every-type"},
		{"kubernetes/shared/worker.yaml", "--grace=30s", "--grace=50s", "more than --grace"},
		{"kubernetes/shared/worker.yaml", "name: FENCEPOST_URL", "name: FENCEPOST_URI", "FENCEPOST_URI"},
		{"kubernetes/shared/worker.yaml", "--listen=0.0.0.0:9090", "--listen=:9090", "--listen"},
		{"kubernetes/shared/worker.yaml", "containerPort: 9090", "containerPort: 9091", "--listen"},
		{"kubernetes/shared/worker.yaml", "path: /readyz, port: metrics", "path: /readyz, port: http", "no port"},
		{"kubernetes/shared/worker.yaml", "runAsUser: 65532", "runAsUser: 0", "user"},
		{"kubernetes/shared/worker.yaml", "mountPath: /data", "mountPath: /var/lib/fencepost", "FENCEPOST_DIR"},
		{"kubernetes/shared/worker.yaml", "accessModes: [ReadWriteOnce]", "accessModes: [ReadWriteMany]", "ReadWriteMany"},
		{"kubernetes/shared/worker.yaml", "topologyKey: kubernetes.io/hostname", "topologyKey: topology.kubernetes.io/zone", "one node"},
		{"kubernetes/shared/worker.yaml", "claimName: fencepost-files", "claimName: fencepost", "claim"},
		{"kubernetes/store/worker.yaml", `"mongodb:"`, `"mongo:"`, "not the address of a store"},
		{"kubernetes/store/worker.yaml", "FENCEPOST_STORE", "FENCEPOST_STORES", "FENCEPOST_STORES"},
		{"kubernetes/store/worker.yaml", "maxUnavailable: 1\n  unhealthy", "maxUnavailable: 0\n  unhealthy", "drain"},
		{"kubernetes/shards/workers.yaml", "type: [orders,", "typ: [orders,", "unknown key"},
		{"kubernetes/shards/workers.yaml", "type: [audit,", "type: [orders,", "two shards"},
		{"kubernetes/shards/workers.yaml", "worker: {type: [payments]}", "type: [payments]", "only for the worker"},
		{"kubernetes/shards/workers.yaml", "replicas: 3", "replicas: 4", "fencepost-3.yaml"},
		{"kubernetes/shards/workers.yaml", "$(POD_NAME)", "$(POD)", "FENCEPOST_CONFIG"},
		{"kubernetes/shards/workers.yaml", "configMap: {name: fencepost-types}", "configMap: {name: types}", "fencepost-types"},
		{"kubernetes/shards/workers.yaml", "maxUnavailable: 1", "maxUnavailable: 0", "drain"},
		{"kubernetes/shards/workers.yaml", "matchLabels: {app.kubernetes.io/name: fencepost, ", "matchLabels: {app.kubernetes.io/name: fence, ", "select"},
		{"kubernetes/shards/kustomization.yaml", "  - workers.yaml\n", "", "workers.yaml"},
		{"kubernetes/addons/scaledobject.yaml", "name: fencepost-worker\n  minReplicaCount", "name: worker\n  minReplicaCount", "scale"},
		{"kubernetes/addons/scaledobject.yaml", "minReplicaCount: 2", "minReplicaCount: 0", "age"},
		{"kubernetes/addons/podmonitor.yaml", "port: metrics", "port: http", "port"},
		{"kubernetes/networkpolicy.yaml", "port: 9090", "port: 9091", "--listen"},
		{"kubernetes/networkpolicy.yaml", "component: worker", "component: producer", "select"},
		{"kubernetes/networkpolicy.yaml", "policyTypes: [Ingress, Egress]", "policyTypes: [Ingress]", "Egress"},
		{"kubernetes/networkpolicy.yaml", "matchLabels: {kubernetes.io/metadata.name: monitoring}", "matchLabels: {}", "everybody"},
		{"kubernetes/networkpolicy.yaml", "matchLabels: {kubernetes.io/metadata.name: mongodb}", "matchLabels: {}", "everybody"},
		{"kubernetes/networkpolicy.yaml", "protocol: UDP, port: 53", "protocol: UDP, port: 54", "DNS"},
		{"kubernetes/networkpolicy.yaml", "port: 27017", "port: 27018", "MongoDB"},
		{"kubernetes/networkpolicy.yaml", "podSelector:", "podselector:", "podselector not found"},
		{"kubernetes/networkpolicy.yaml", "port: 9096", "port: 9097", "--listen"},
		{"kubernetes/networkpolicy.yaml", "component: serve", "component: worker", "select"},
		{"kubernetes/networkpolicy.yaml", "kubernetes.io/metadata.name: shop", "", "everybody"},
		{"kubernetes/serve/serve.yaml", "--listen=0.0.0.0:9096", "--listen=0.0.0.0:9097", "--listen"},
		{"kubernetes/serve/serve.yaml", "containerPort: 9096", "containerPort: 9097", "--listen"},
		{"kubernetes/serve/serve.yaml", "targetPort: https", "targetPort: http", "service"},
		{"kubernetes/serve/serve.yaml", "selector: {app.kubernetes.io/name: fencepost, app.kubernetes.io/component: serve}", "selector: {app.kubernetes.io/component: worker}", "service"},
		{"kubernetes/serve/serve.yaml", "--stop-timeout=30s", "--stop-timeout=60s", "--stop-timeout"},
		{"kubernetes/serve/serve.yaml", "scheme: HTTPS", "scheme: HTTP", "TLS"},
		{"kubernetes/serve/serve.yaml", "--token-file=/tokens/", "--token-file=/etc/", "token-file"},
		{"kubernetes/serve/serve.yaml", "secretName: fencepost-tokens, defaultMode: 0440", "secretName: fencepost-tokens, defaultMode: 0444", "readable"},
		{"kubernetes/serve/serve.yaml", "FENCEPOST_STORE", "FENCEPOST_STORES", "not the address of a store"},
		{"kubernetes/serve/serve.yaml", "maxUnavailable: 1", "maxUnavailable: 0", "drain"},
		{"kubernetes/serve/serve.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "read-only"},
		{"compose.yaml", "profiles: [http]", "profiles: []", "asked for"},
		{"compose.yaml", "127.0.0.1:9096:9096", "9096:9096", "this machine"},
		{"compose.yaml", "./tokens:/tokens:ro", "./tokens/tokens:/tokens/tokens:ro", "token-file"},
		{"compose.yaml", "./tokens:/tokens:ro", "./tokens:/tokens", "token-file"},
		{"compose.yaml", "stop_grace_period: 40s", "stop_grace_period: 20s", "--stop-timeout"},
		{"compose.yaml", "--all-types,", "--all,", "unknown flag: --all"},
		{"compose.yaml", "@sha256:4968", "@sha256:", "not pinned by digest"},
		{"compose.yaml", "FENCEPOST_URL:", "FENCEPOST_URI:", "FENCEPOST_URI"},
		{"compose.yaml", "--grace=20s", "--grace=40s", "more than --grace"},
		{"compose.yaml", `FENCEPOST_STORE: "mongodb:"`, `FENCEPOST_STORE: "mongo:"`, "not the address of a store"},
		{"compose.yaml", "FENCEPOST_STORE:", "FENCEPOST_STORES:", "not the address of a store"},
		{"compose.yaml", "scale: 3", "scale: 3\n    volumes: [\"db1:/data\"]", "in the store"},
		{"compose.yaml", "read_only: true", "readonly: true", "readonly not found"},
		{"compose.yaml", "CMD, fencepost, healthcheck", "CMD, curl, -f", "healthcheck"},
		{"prometheus/prometheus.yml", "port: 9090", "port: 9091", "9090"},
		{"prometheus/prometheus.yml", "port: 9096", "port: 9097", "9096"},
		{"prometheus/prometheus.yml", "credentials_file: serve-token", "credentials_file: token", "token"},
		{"kubernetes/networkpolicy.yaml", "metadata.name: shop}\n        - namespaceSelector:\n            matchLabels: {kubernetes.io/metadata.name: monitoring}", "metadata.name: shop}", "Prometheus"},
		{"kubernetes/addons/podmonitor-serve.yaml", "port: https", "port: metrics", "port"},
		{"kubernetes/addons/podmonitor-serve.yaml", "component: serve", "component: worker", "select"},
		{"kubernetes/addons/podmonitor-serve.yaml", "      authorization:\n        credentials: {name: fencepost-metrics, key: token}\n", "", "token"},
		{"Dockerfile", "USER 65532:65532", "USER nobody", "user"},
	} {
		found := problems(mutant{os.DirFS(deployed), t, m.file, m.old, m.new})
		if !slices.ContainsFunc(found, func(p string) bool { return strings.Contains(p, m.want) }) {
			t.Errorf("%s with %q instead of %q: found %q; want something about %q", m.file, m.new, m.old, found, m.want)
		}
	}
}

// mutant is the directory with one change.
type mutant struct {
	fs.FS
	t              *testing.T
	file, old, new string
}

func (m mutant) ReadFile(name string) ([]byte, error) {
	b, err := fs.ReadFile(m.FS, name)
	if name != m.file || err != nil {
		return b, err
	}
	if !bytes.Contains(b, []byte(m.old)) {
		m.t.Errorf("%s does not contain %q: this mistake was not tried", name, m.old)
	}
	return bytes.ReplaceAll(b, []byte(m.old), []byte(m.new)), nil
}

// findings collects errors.
type findings struct {
	fsys  fs.FS
	list  []string
	where string // file and object that is being checked
}

func (f *findings) add(format string, args ...any) {
	f.list = append(f.list, f.where+": "+fmt.Sprintf(format, args...))
}

func problems(fsys fs.FS) []string {
	f := &findings{fsys: fsys}
	image := f.dockerfile()
	f.compose(image)
	f.kubernetes(image)
	return f.list
}

func (f *findings) read(name string) []byte {
	f.where = name
	b, err := fs.ReadFile(f.fsys, name)
	if err != nil {
		f.add("%v", err)
	}
	return b
}

func (f *findings) decode(b []byte, into any) {
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		f.add("%v", err)
	}
}

// image holds the settings of the Dockerfile.
type image struct {
	uid, gid int
	dir      string
	port     string
}

func (f *findings) dockerfile() image {
	var i image
	b := string(f.read("Dockerfile"))
	get := func(re string) string {
		m := regexp.MustCompile("(?m)^" + re + "$").FindStringSubmatch(b)
		if m == nil {
			f.add("no line %s: is the user a number?", re)
			return ""
		}
		return m[1]
	}
	fmt.Sscanf(get(`USER (\d+:\d+)`), "%d:%d", &i.uid, &i.gid)
	i.dir = get(`ENV .*FENCEPOST_DIR=(\S+).*`)
	i.port = get(`EXPOSE (\d+)`)
	if volume := get(`VOLUME (\S+)`); volume != i.dir {
		f.add("the volume is %s, FENCEPOST_DIR %s", volume, i.dir)
	}
	return i
}

// workerArgs checks a worker's command line and environment, and that it gets enough time to stop.
func (f *findings) workerArgs(args []string, env []string, i image, killedAfter time.Duration) {
	w := workercmd.New()
	cli.Prepare(w)
	if err := w.ParseFlags(args); err != nil {
		f.add("worker %q: %v", args, err)
		return
	}
	if rest := w.Flags().Args(); len(rest) > 0 {
		f.add("worker %q: unexpected %q", args, rest)
	}
	for _, name := range env {
		if flag, ours := strings.CutPrefix(name, "FENCEPOST_"); ours && w.Flags().Lookup(strings.ToLower(strings.ReplaceAll(flag, "_", "-"))) == nil {
			f.add("%s stands for no flag of the worker", name)
		}
	}
	if grace, err := w.Flags().GetDuration("grace"); err != nil || killedAfter < grace+5*time.Second {
		f.add("killed after %v, which should be 5 s more than --grace %v", killedAfter, grace)
	}
	if want := "--listen=0.0.0.0:" + i.port; !slices.Contains(args, want) { // clients are outside the container
		f.add("worker %q: want %s, the image's port", args, want)
	}
}

func (f *findings) compose(i image) {
	var c composeFile
	f.decode(f.read("compose.yaml"), &c)
	for name := range c.Anchors {
		if !strings.HasPrefix(name, "x-") {
			f.add("there is no top-level %s", name)
		}
	}
	for name, s := range c.Services {
		f.where = "compose.yaml, " + name
		var env []string
		for e := range s.Environment {
			env = append(env, e)
		}
		if name == "worker" {
			f.workerArgs(s.Command, env, i, s.StopGracePeriod)
			if err := store.Check(s.Environment["FENCEPOST_STORE"], s.Environment["FENCEPOST_URL"]); err != nil {
				f.add("FENCEPOST_STORE: %v", err)
			}
			if len(s.Volumes) > 0 {
				f.add("volumes %v; the files are in the store", s.Volumes)
			}
			if !slices.Equal(s.Healthcheck.Test, []string{"CMD", "fencepost", "healthcheck"}) {
				f.add("the image has no other program to ask than fencepost healthcheck, not %q", s.Healthcheck.Test)
			}
		}
		if name == "serve" {
			f.composeServe(s)
		}
		if (name == "worker" || name == "producer" || name == "serve") && (!s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.Environment["FENCEPOST_URL"] == "") {
			f.add("want read_only, cap_drop ALL and FENCEPOST_URL")
		}
		if own := strings.HasPrefix(s.Image, "${FENCEPOST_IMAGE:-"); !own && !pinned.MatchString(s.Image) {
			f.add("image %q is not pinned by digest", s.Image)
		}
		for _, v := range s.Volumes {
			volume, _, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[volume]; !ok && !strings.HasPrefix(volume, ".") {
				f.add("volume %s is not declared", volume)
			}
		}
	}
	var p struct {
		Scrape []struct {
			Authorization struct {
				File string `yaml:"credentials_file"`
			}
			DNS []struct {
				Names []string
				Port  int
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	want := []struct{ name, port, token string }{{"worker", i.port, ""}, {"serve", servePort, "serve-token"}}
	if err := yaml.Unmarshal(f.read("prometheus/prometheus.yml"), &p); err != nil || len(p.Scrape) != len(want) {
		f.add("want %d jobs (%v)", len(want), err)
		return
	}
	for n, job := range p.Scrape {
		w := want[n]
		if len(job.DNS) != 1 || strconv.Itoa(job.DNS[0].Port) != w.port || !slices.Equal(job.DNS[0].Names, []string{w.name}) {
			f.add("scrapes %v; want %s port %s", job.DNS, w.name, w.port)
		}
		if job.Authorization.File != w.token {
			f.add("shows %s the token in %q, want %q", w.name, job.Authorization.File, w.token)
		}
	}
}

// cluster is everything in a cluster with one of the layouts.
type cluster struct {
	claims  []object[claimSpec]
	pods    []object[workload]
	service *object[service]
	budget  *object[budget]
	config  *object[struct{}]
}

func (f *findings) kubernetes(i image) {
	slots, shared, shards := f.layout("store"), f.layout("shared"), f.layout("shards")
	all := slices.Concat(slots.pods, shared.pods, shards.pods)
	for _, w := range all {
		f.where = w.Metadata.Name
		f.workload(w, i)
	}
	f.checkStore(slots)
	f.checkShared(shared)
	f.checkShards(shards)
	f.checkAddons(slices.Concat(slots.pods, shared.pods), all)
	f.checkServe(f.layout("serve"), i)
	f.checkServeMonitor(f.layout("serve").pods)
	f.checkNetwork(all, i)
}

// checkNetwork checks that one policy applies to all workers and another one to serve, and that each allows incoming connections only at the port
// of --listen, and outgoing ones only to MongoDB and DNS.
func (f *findings) checkNetwork(workers []object[workload], i image) {
	docs := f.documents("kubernetes/networkpolicy.yaml")
	if len(docs) != 2 {
		f.add("%d policies, want 2", len(docs))
		return
	}
	serve := f.layout("serve").pods
	f.where = "kubernetes/networkpolicy.yaml"
	for n, of := range [][]object[workload]{workers, serve} {
		p := typed[networkPolicy](f, docs[n], "networking.k8s.io/v1").Spec
		port := []string{i.port, servePort}[n]
		for _, w := range of {
			if !p.PodSelector.MatchLabels.in(w.Spec.Template.Metadata.Labels) {
				f.add("does not select %s", w.Metadata.Name)
			}
		}
		if !slices.Equal(p.PolicyTypes, []string{"Ingress", "Egress"}) {
			f.add("is about %v, want Ingress and Egress", p.PolicyTypes)
		}
		var in, out []string
		scraped := false
		for _, rule := range p.Ingress {
			in = append(in, f.ports(rule.From, rule.Ports)...)
			scraped = scraped || slices.ContainsFunc(rule.From, func(p peer) bool {
				return p.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] == "monitoring"
			})
		}
		for _, rule := range p.Egress {
			out = append(out, f.ports(rule.To, rule.Ports)...)
		}
		if !scraped {
			f.add("does not let Prometheus in at %s", port)
		}
		if !slices.Equal(in, []string{"TCP " + port}) {
			f.add("lets in %v; --listen is at %s", in, port)
		}
		if !slices.Equal(out, []string{"UDP 53", "TCP 53", "TCP 27017"}) {
			f.add("lets out %v; want DNS (53) and MongoDB (27017)", out)
		}
	}
}

// ports returns the ports of a rule, which must name its peers: a rule without peers, or with an empty selector, applies to everyone.
func (f *findings) ports(peers []peer, ports []networkPort) (list []string) {
	if len(peers) == 0 || slices.ContainsFunc(peers, func(p peer) bool { return len(p.NamespaceSelector.MatchLabels) == 0 }) {
		f.add("ports %v are open to everybody", ports)
	}
	for _, p := range ports {
		list = append(list, fmt.Sprint(p.Protocol, " ", p.Port))
	}
	return list
}

// layout reads the files that a kustomization names.
func (f *findings) layout(dir string) (c cluster) {
	dir = "kubernetes/" + dir
	var k kustomization
	f.decode(f.read(dir+"/kustomization.yaml"), &k)
	files, err := fs.Glob(f.fsys, dir+"/*.yaml")
	if err != nil {
		f.add("%v", err)
	}
	for _, file := range files {
		if name := filepath.Base(file); name != "kustomization.yaml" && !slices.Contains(k.Resources, name) {
			f.add("%s is not among the resources", name)
		}
	}
	for _, name := range k.Resources {
		for _, doc := range f.documents(dir + "/" + name) {
			var head struct{ Kind string }
			if err := yaml.Unmarshal(doc, &head); err != nil {
				f.add("%v", err)
			}
			switch head.Kind {
			case "PersistentVolumeClaim":
				c.claims = append(c.claims, typed[claimSpec](f, doc, "v1"))
			case "Deployment", "StatefulSet":
				c.pods = append(c.pods, typed[workload](f, doc, "apps/v1"))
			case "Service":
				s := typed[service](f, doc, "v1")
				c.service = &s
			case "PodDisruptionBudget":
				b := typed[budget](f, doc, "policy/v1")
				c.budget = &b
			case "ConfigMap":
				m := typed[struct{}](f, doc, "v1")
				c.config = &m
			default:
				f.add("kind %q is not known here", head.Kind)
			}
		}
	}
	return c
}

// documents splits a file into its YAML documents.
func (f *findings) documents(name string) (docs [][]byte) {
	for d := yaml.NewDecoder(bytes.NewReader(f.read(name))); ; {
		var n yaml.Node
		if err := d.Decode(&n); errors.Is(err, io.EOF) {
			return docs
		} else if err != nil {
			f.add("%v", err)
			return docs
		}
		b, err := yaml.Marshal(&n)
		if err != nil {
			f.add("%v", err)
		}
		docs = append(docs, b)
	}
}

func typed[S any](f *findings, doc []byte, api string) (o object[S]) {
	f.decode(doc, &o)
	if o.APIVersion != api || o.Metadata.Name == "" {
		f.add("%s %q has apiVersion %q, want %q and a name", o.Kind, o.Metadata.Name, o.APIVersion, api)
	}
	return o
}

// in reports whether a selector selects objects with these labels.
func (s labels) in(l labels) bool {
	for k, v := range s {
		if l[k] != v {
			return false
		}
	}
	return len(s) > 0
}

// workload checks a workload of workers.
func (f *findings) workload(w object[workload], i image) {
	c := f.pod(w, i, i.port)
	if c == nil {
		return
	}
	var env []string
	for _, e := range c.Env {
		env = append(env, e.Name)
	}
	f.workerArgs(c.Args, env, i, time.Duration(w.Spec.Template.Spec.TerminationGracePeriodSeconds)*time.Second)
	if address := c.store(); address != "" {
		if err := store.Check(address, "mongodb://db/shop"); err != nil {
			f.add("FENCEPOST_STORE: %v", err)
		}
	} else if len(c.VolumeMounts) == 0 || c.VolumeMounts[0].MountPath != i.dir {
		f.add("mounts %v; want the image's FENCEPOST_DIR %s", c.VolumeMounts, i.dir)
	}
}

// pod checks what all workloads have in common, and returns the one container, which listens at a port.
func (f *findings) pod(w object[workload], i image, port string) *kubeContainer {
	pod := w.Spec.Template.Spec
	if !w.Spec.Selector.MatchLabels.in(w.Spec.Template.Metadata.Labels) {
		f.add("does not select its own pods")
	}
	if sc := pod.SecurityContext; !sc.RunAsNonRoot || sc.RunAsUser != i.uid || sc.RunAsGroup != i.gid || len(pod.Volumes) > 0 && sc.FSGroup != i.gid {
		f.add("runs as user %d, group %d, fsGroup %d; the image's user is %d:%d", sc.RunAsUser, sc.RunAsGroup, sc.FSGroup, i.uid, i.gid)
	}
	if len(pod.Containers) != 1 {
		f.add("%d containers, want 1", len(pod.Containers))
		return nil
	}
	c := pod.Containers[0]
	if sc := c.SecurityContext; sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation || !sc.ReadOnlyRootFilesystem || !slices.Equal(sc.Capabilities.Drop, []string{"ALL"}) {
		f.add("want no privilege escalation, a read-only root file system and no capabilities")
	}
	if len(c.Ports) != 1 || strconv.Itoa(c.Ports[0].ContainerPort) != port {
		f.add("ports %v; --listen is at %s", c.Ports, port)
		return nil
	}
	for path, p := range map[string]probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p.HTTPGet.Path != path || p.HTTPGet.Port != c.Ports[0].Name {
			f.add("a probe asks for %s at port %q: there is no port or page of that name", p.HTTPGet.Path, p.HTTPGet.Port)
		}
	}
	if p := c.StartupProbe; p.HTTPGet != c.LivenessProbe.HTTPGet {
		f.add("the startup probe asks for something else than the liveness probe")
	}
	return &c
}

// store returns the address of --store.
func (c kubeContainer) store() string {
	for _, e := range c.Env {
		if e.Name == "FENCEPOST_STORE" {
			return e.Value
		}
	}
	return ""
}

func (f *findings) checkStore(c cluster) {
	f.where = "store"
	if len(c.pods) != 1 || len(c.claims) > 0 || c.budget == nil {
		f.add("want a workload and a PodDisruptionBudget, and no claim")
		return
	}
	w := c.pods[0]
	if pod := w.Spec.Template.Spec; len(pod.Volumes) > 0 || len(pod.Containers) != 1 || pod.Containers[0].store() == "" {
		f.add("want FENCEPOST_STORE, and no volume")
	}
	if !c.budget.Spec.Selector.MatchLabels.in(w.Spec.Template.Metadata.Labels) || c.budget.Spec.MaxUnavailable < 1 {
		f.add("the budget has to select the pods, and to let a node be drained")
	}
}

func (f *findings) checkShared(c cluster) {
	if len(c.pods) != 1 || len(c.claims) != 1 {
		f.add("%d workloads and %d claims, want one each", len(c.pods), len(c.claims))
		return
	}
	w, claim := c.pods[0], c.claims[0]
	f.where = "shared"
	if !slices.Equal(claim.Spec.AccessModes, []string{"ReadWriteOnce"}) {
		f.add("access modes %v: what offers ReadWriteMany is a network file system, and refused", claim.Spec.AccessModes)
	}
	pod := w.Spec.Template.Spec
	if len(pod.Volumes) != 1 || pod.Volumes[0].Claim.Name != claim.Metadata.Name {
		f.add("volumes %v; the claim is %s", pod.Volumes, claim.Metadata.Name)
	}
	together := pod.Affinity.PodAffinity.Required
	if len(together) != 1 || together[0].TopologyKey != "kubernetes.io/hostname" || !together[0].LabelSelector.MatchLabels.in(w.Spec.Template.Metadata.Labels) {
		f.add("replicas have to be on the one node that has the volume")
	}
	if c.budget != nil {
		f.add("a disruption budget would block every drain of the one node: the new pods cannot start elsewhere while old ones are there")
	}
}

func (f *findings) checkShards(c cluster) {
	f.where = "shards"
	if len(c.pods) != 1 || c.config == nil || c.service == nil || c.budget == nil {
		f.add("want a StatefulSet, a ConfigMap, a Service and a PodDisruptionBudget")
		return
	}
	w := c.pods[0]
	pod := w.Spec.Template.Spec
	if w.Kind != "StatefulSet" || len(w.Spec.VolumeClaimTemplates) != 1 || w.Spec.ServiceName != c.service.Metadata.Name {
		f.add("want a StatefulSet of service %s, and a volume for each replica", c.service.Metadata.Name)
	}
	if l := w.Spec.Template.Metadata.Labels; !c.budget.Spec.Selector.MatchLabels.in(l) || !c.service.Spec.Selector.in(l) {
		f.add("budget and service have to select the pods")
	}
	if c.budget.Spec.MaxUnavailable < 1 {
		f.add("with that budget no node could be drained")
	}
	if len(pod.Volumes) != 1 || pod.Volumes[0].ConfigMap.Name != c.config.Metadata.Name || len(pod.Containers[0].VolumeMounts) != 2 {
		f.add("the pods have to mount the files of %s", c.config.Metadata.Name)
		return
	}
	config := pod.Containers[0].VolumeMounts[1].MountPath + "/$(POD_NAME).yaml"
	if !slices.ContainsFunc(pod.Containers[0].Env, func(e kubeEnv) bool { return e.Name == "FENCEPOST_CONFIG" && e.Value == config }) {
		f.add("FENCEPOST_CONFIG is not %s", config)
	}
	f.checkTypes(w, *c.config)
}

// checkTypes checks the configuration files of the replicas.
func (f *findings) checkTypes(w object[workload], config object[struct{}]) {
	served := map[string]string{}
	for n := range w.Spec.Replicas {
		name := fmt.Sprintf("%s-%d.yaml", w.Metadata.Name, n)
		content, ok := config.Data[name]
		if !ok {
			f.add("there is no %s for the replica", name)
			continue
		}
		if !strings.HasPrefix(content, "worker:") {
			f.add("%s is not only for the worker: other programs in the container read it", name)
		}
		types, err := typesOf(content, w.Spec.Template.Spec.Containers[0].Args)
		if err != nil || len(types) == 0 {
			f.add("%s: %v: %v", name, types, err)
		}
		for _, typ := range types {
			if other, taken := served[typ]; taken {
				f.add("type %s is in two shards, %s and %s", typ, other, name)
			}
			served[typ] = name
		}
	}
}

// typesOf returns the types of a worker with that configuration file: what `worker config` prints.
func typesOf(config string, args []string) ([]string, error) {
	dir, err := os.MkdirTemp("", "fencepost-deploy")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	w := workercmd.New()
	var stdout, stderr bytes.Buffer
	w.SetOut(&stdout)
	w.SetErr(&stderr)
	w.SetArgs(append([]string{"config", "-o", "json", "--config", file}, args...))
	if code := cli.Run(context.Background(), w); code != cli.ExitOK {
		return nil, errors.New(stderr.String())
	}
	var settings []cli.Setting
	if err := json.Unmarshal(stdout.Bytes(), &settings); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(settings, func(s cli.Setting) bool { return s.Name == "type" })
	if i < 0 || settings[i].Value == "" {
		return nil, errors.New("no types")
	}
	return strings.Split(settings[i].Value, ","), nil
}

// checkAddons: deployments are scaled, and all workloads are scraped.
func (f *findings) checkAddons(deployments, all []object[workload]) {
	for _, doc := range f.documents("kubernetes/addons/scaledobject.yaml") {
		s := typed[scaledObject](f, doc, "keda.sh/v1alpha1").Spec
		for _, w := range deployments {
			if s.ScaleTargetRef.Name != w.Metadata.Name {
				f.add("scales %q, the deployment is %s", s.ScaleTargetRef.Name, w.Metadata.Name)
			}
		}
		if s.MinReplicaCount < 1 || s.MaxReplicaCount < s.MinReplicaCount {
			f.add("from %d to %d replicas: without a worker nobody tells the age", s.MinReplicaCount, s.MaxReplicaCount)
		}
		if len(s.Triggers) != 1 || s.Triggers[0].Type != "prometheus" || !strings.Contains(s.Triggers[0].Metadata.Query, "age") {
			f.add("want one trigger, on the age of the backlog")
		}
	}
	for _, doc := range f.documents("kubernetes/addons/podmonitor.yaml") {
		m := typed[podMonitor](f, doc, "monitoring.coreos.com/v1").Spec
		for _, w := range all {
			if !m.Selector.MatchLabels.in(w.Spec.Template.Metadata.Labels) {
				f.add("does not select %s", w.Metadata.Name)
			}
		}
		if len(m.Endpoints) != 1 || m.Endpoints[0].Port != "metrics" || m.Endpoints[0].Path != "/metrics" {
			f.add("scrapes %v, want /metrics at port metrics", m.Endpoints)
		}
	}
}

// checkServeMonitor checks that fencepost serve is scraped, with TLS and a token.
func (f *findings) checkServeMonitor(serve []object[workload]) {
	for _, doc := range f.documents("kubernetes/addons/podmonitor-serve.yaml") {
		m := typed[podMonitor](f, doc, "monitoring.coreos.com/v1").Spec
		for _, w := range serve {
			if !m.Selector.MatchLabels.in(w.Spec.Template.Metadata.Labels) {
				f.add("does not select %s", w.Metadata.Name)
			}
		}
		if len(m.Endpoints) != 1 || m.Endpoints[0].Port != "https" || m.Endpoints[0].Path != "/metrics" || m.Endpoints[0].Scheme != "https" {
			f.add("scrapes %v, want /metrics at port https", m.Endpoints)
			return
		}
		if m.Endpoints[0].Authorization.Credentials["key"] == "" {
			f.add("shows no token")
		}
	}
}

// Tools that really read these files, where they are installed.
func TestToolsAcceptTheFiles(t *testing.T) {
	ran := 0
	for _, command := range [][]string{
		{"docker-compose", "-f", "compose.yaml", "config", "--quiet"},
		{"docker", "compose", "-f", "compose.yaml", "config", "--quiet"},
		{"kubectl", "kustomize", "kubernetes/store"},
		{"kubectl", "kustomize", "kubernetes/shared"},
		{"kubectl", "kustomize", "kubernetes/shards"},
		{"promtool", "check", "config", "--syntax-only", "prometheus/prometheus.yml"}, // the file with the token is not there
		{"promtool", "check", "rules", "prometheus/alerts.yml"},
	} {
		if _, err := exec.LookPath(command[0]); err != nil {
			continue
		}
		if command[0] == "docker" && exec.Command("docker", "compose", "version").Run() != nil {
			continue
		}
		ran++
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir = deployed
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", command, err, out)
		}
	}
	if ran == 0 {
		t.Skip("none of docker-compose, docker compose, kubectl and promtool is installed; TestManifests checks the files all the same")
	}
}
