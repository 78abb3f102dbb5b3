package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"net"

	"github.com/fencepost/fencepost/integration/kit"
)

// commandsWithURL returns the words of every command of a program that takes --url, from its own help.
func commandsWithURL(t *testing.T, program string, words ...string) (found []string) {
	t.Helper()
	help := mustRun(t, nil, program, append(slices.Clone(words), "--help")...).stdout
	_, flags, _ := strings.Cut(help, "\nFlags:\n")
	if strings.Contains(flags, " --url ") {
		found = append(found, strings.Join(append([]string{program}, words...), " "))
	}
	_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if name := strings.Fields(line)[0]; name != "help" && name != "completion" {
			found = append(found, commandsWithURL(t, program, append(slices.Clone(words), name)...)...)
		}
	}
	return found
}

// argumentsOf holds the arguments that commands need, besides the URL, to get as far as opening it.
var argumentsOf = map[string]string{
	"worker":                      "--type t --until-empty --log-level debug",
	"worker config":               "--type t",
	"producer publish":            "--type t --message x",
	"fencepost cat":               "--store mongodb: t",
	"fencepost compact":           "data/t.fpl",
	"fencepost conform publisher": "true",
	"fencepost copy":              "--yes data mongodb:",
	"fencepost repair":            "data/t.fpl",
	"fencepost dead requeue":      "--type t",
	"fencepost dead rm":           "--type t --yes",
	"fencepost dead show":         "00000000000000000000000000000000",
	"fencepost locks release":     "--force --why test t",
	"fencepost locks show":        "t",
	"fencepost locks watch":       "t",
	"fencepost scheduled rm":      "--type t --yes",
	"fencepost top":               "--once",
	"fencepost types limit":       "t --max-backlog 5",
	"fencepost types pause":       "t",
	"fencepost types peek":        "t",
	"fencepost types purge":       "t --all --yes",
	"fencepost types resume":      "t",
	"fencepost types show":        "t",
	"fencepost doctor":            "",
	"fencepost setup":             "",
	"fencepost demo":              "--source .",
	"fencepost dead ls":           "",
	"fencepost locks ls":          "",
	"fencepost scheduled ls":      "",
	"fencepost tail":              "--store mongodb: t",
	"fencepost types ls":          "",
	"fencepost verify":            "--store mongodb:",
	"fencepost keep":              "--size 1GiB --dry-run --store mongodb:",
	"fencepost ui":                "--listen 127.0.0.1:0",
	"fencepost serve":             "--listen 127.0.0.1:0",
}

// publishOne creates the embedded database that programs find without --url.
func publishOne(t *testing.T, dir string) {
	t.Helper()
	mustRun(t, nil, "producer", "publish", "--url", "sqlite://"+filepath.Join(dir, "data", "fencepost.db"), "--type", "t", "--message", "x")
}

// No program reveals a password, whatever is wrong with the server, the URL, or the source of the URL.
func TestNoCommandTellsThePassword(t *testing.T) {
	t.Parallel() // it spends most of its time waiting
	hangsUp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hangsUp.Close() })
	go func() {
		for {
			c, err := hangsUp.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	// The password's parts contain letters, because the random names of directories consist of digits, and are printed.
	const options = "?serverSelectionTimeoutMS=200&tlsCertificateKeyFilePassword=secret-option&authSource=admin"
	urls := map[string]string{
		"nobody listens":    "mongodb://bob:secret-47xi@127.0.0.1:1/" + options,
		"hangs up":          "mongodb://bob:secret-47xi@" + hangsUp.Addr().String() + "/" + options,
		"encoded":           "mongodb://bob:secret%2F47xi@127.0.0.1:1/" + options,
		"question mark":     "mongodb://bob:secret-47?11secret@127.0.0.1:1/" + options,
		"slash":             "mongodb://bob:secret/47xi@127.0.0.1:1/" + options,
		"at sign":           "mongodb://bob:secret@47xisecret@127.0.0.1:1/" + options,
		"percent sign":      "mongodb://bob:secret%zz@127.0.0.1:1/" + options,
		"bad port":          "mongodb://bob:secret-47xi@127.0.0.1:port/" + options,
		"unknown scheme":    "postgres://bob:secret-47xi@127.0.0.1:1/" + options,
		"misspelled scheme": "mongodb:/bob:secret-47xi@127.0.0.1:1/" + options,
		"bad option":        "mongodb://bob:secret-47xi@127.0.0.1:1/?w=-5&proxyPassword=secret-option",
		"wrong scheme":      "sqlite://bob:secret-47xi@127.0.0.1:1/" + options,
	}
	few := []string{"nobody listens", "hangs up", "percent sign"} // a server that fails in two ways, and no URL
	var commands []string
	for _, program := range []string{"worker", "producer", "fencepost"} {
		commands = append(commands, commandsWithURL(t, program)...)
	}
	if len(commands) < 20 {
		t.Fatalf("only %d commands: %q", len(commands), commands)
	}
	files := []string{"compact", "repair"}
	check := func(t *testing.T, dir, what string, args []string, env ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, args[0]), args[1:]...)
		cmd.Env, cmd.Dir = append(append(kit.Env(), env...), "FENCEPOST_CONNECT_TIMEOUT=500ms"), dir
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "secret") || strings.Contains(string(out), "47xi") {
			t.Errorf("%s: %q tells the password:\n%s", what, args[0:min(3, len(args))], out)
		}
		if slices.Contains(files, args[min(1, len(args)-1)]) {
			return // they fail earlier, at the file
		}
		if what == "nobody listens" && args[1] != "config" && !strings.Contains(string(out), "127.0.0.1:1") {
			t.Errorf("%q did not come so far as to open the URL:\n%s", args, out)
		}
		if err == nil && !slices.Contains(args, "config") {
			t.Errorf("%s: %q succeeded:\n%s", what, args, out)
		}
	}
	// Files that are not configurations, and may be full of passwords.
	noConfigs := map[string]string{
		"unknown anchor": "url: *secret-47xi\n",
		"shadow":         "root:$6$secret$47xi:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",
		"private key":    "-----BEGIN PRIVATE KEY-----\nsecret47xi==\n-----END PRIVATE KEY-----\n",
		"unquoted":       "url: @secret-47xi: x\n",
	}
	for _, command := range commands {
		more, known := argumentsOf[command]
		if !known {
			t.Errorf("%q takes --url; say in argumentsOf how to call it", command)
		}
		args := slices.Concat(strings.Fields(command), strings.Fields(more))
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			url := filepath.Join(dir, "url")
			for name, text := range noConfigs {
				if command != "worker" && name != "shadow" {
					continue
				}
				if err := os.WriteFile(url, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(filepath.Join(bin, args[0]), append(slices.Clone(args[1:]), "--config", url)...)
				cmd.Env, cmd.Dir = kit.Env(), dir
				out, err := cmd.CombinedOutput()
				if err == nil || !strings.Contains(string(out), url) || strings.Contains(string(out), "secret") || strings.Contains(string(out), "47xi") {
					t.Errorf("configuration file, %s: %v, %s", name, err, out)
				}
			}
			for name, u := range urls {
				if command != "worker" && !slices.Contains(few, name) {
					continue // one command is enough for the others, …
				}
				check(t, dir, name, args, "FENCEPOST_URL="+u)
				if command != "worker" && name != "nobody listens" {
					continue // … and for the other ways to pass the URL
				}
				check(t, dir, name+", by flag", append(slices.Clone(args), "--url", u))
				check(t, dir, name+", as argument by mistake", append(slices.Clone(args), u, u))
				if err := os.WriteFile(url, []byte(u), 0o600); err != nil {
					t.Fatal(err)
				}
				check(t, dir, name+", by file", append(slices.Clone(args), "--url-file", url))
				check(t, dir, name+", as configuration file by mistake", append(slices.Clone(args), "--config", url))
				check(t, dir, name+", as name of a file by mistake", append(slices.Clone(args), "--url-file", u))
			}
		})
	}
	// A store may be in a database with its own password.
	for _, command := range []string{"worker --type t --until-empty --log-level debug", "worker config --type t", "fencepost verify", "fencepost cat t", "fencepost tail t",
		"fencepost compact t", "fencepost repair t", "fencepost doctor", "fencepost keep --size 1GiB --dry-run", "fencepost ui --listen 127.0.0.1:0", "fencepost serve --listen 127.0.0.1:0"} {
		t.Run(command+", store", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "store")
			publishOne(t, dir)
			for name, u := range urls {
				if !strings.HasPrefix(command, "worker --type") && !slices.Contains(few, name) {
					continue
				}
				check(t, dir, name, strings.Fields(command), "FENCEPOST_STORE="+u)
				check(t, dir, name+", by flag", append(strings.Fields(command), "--store", u))
				write(t, file, []byte(u))
				check(t, dir, name+", by file", append(strings.Fields(command), "--store-file", file))
				check(t, dir, name+", as name of a file by mistake", append(strings.Fields(command), "--store-file", u))
			}
		})
	}
	t.Run("fencepost copy, places", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		file := filepath.Join(dir, "store")
		publishOne(t, dir)
		for name, u := range urls {
			write(t, file, []byte(u))
			for what, place := range map[string]string{"": u, ", by file": "@" + file, ", as name of a file by mistake": "@" + u} {
				check(t, dir, name+what, []string{"fencepost", "copy", "--yes", place, "data"})
				check(t, dir, name+what, []string{"fencepost", "copy", "--yes", "data", place, "t"})
			}
		}
	})
}
