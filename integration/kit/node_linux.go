package kit

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Node is a host that shares nothing with the others, on one machine:
//
//   - a network namespace with one interface, which leads to an address of this machine and nowhere else;
//   - a file system of its own in memory, with the programs that it was given, and nothing else but what [Node.Mount] puts there;
//   - a host name, process numbers and shared memory of its own. There is no /proc.
//
// It stays when its programs end, as a host does that is switched off and on. It takes root and ip(8).
type Node struct {
	name, veth string
	root       string // directory
	mounts     []string
	forwards   []net.Listener

	// Here is this machine's address as the node sees it; nothing else can be reached.
	Here string

	mu      sync.Mutex
	unplugs int // that were not undone
}

// CanHaveNodes says why there can be no nodes; nil if there can.
func CanHaveNodes() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces take root")
	}
	n, err := NewNode("probe", "")
	if err != nil {
		return err
	}
	return n.Remove()
}

// NewNode makes a host with the programs of a directory at /bin; "": none.
func NewNode(host, programs string) (n *Node, err error) {
	n = &Node{name: host}
	n.veth = "fp" + strings.ToLower(rand.Text()[:10])
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Remove())
		}
	}()
	here, there, err := freeSubnet()
	if err != nil {
		return n, err
	}
	n.Here = here
	for _, command := range []string{
		"netns add " + n.veth,
		"link add " + n.veth + " type veth peer name eth0 netns " + n.veth,
		"addr add " + here + "/30 dev " + n.veth,
		"link set " + n.veth + " up",
		"-n " + n.veth + " addr add " + there + "/30 dev eth0",
		"-n " + n.veth + " link set eth0 up",
		"-n " + n.veth + " link set lo up",
	} {
		if err := ip(command); err != nil {
			return n, err
		}
	}
	if n.root, err = os.MkdirTemp("", "fencepost-node-"); err != nil {
		return n, err
	}
	if err := unix.Mount("none", n.root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64m,mode=755"); err != nil {
		return n, fmt.Errorf("mount a file system in memory: %w", err)
	}
	n.mounts = append(n.mounts, n.root)
	if programs == "" {
		return n, nil
	}
	if err := n.mount(programs, "/bin"); err != nil {
		return n, err
	}
	return n, n.ReadOnly("/bin", true)
}

func ip(command string) error {
	if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", command, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// freeSubnet returns two addresses of a network of four of 198.18.0.0/15, which RFC 2544 keeps for tests of devices. None of them is
// an address of this machine yet.
func freeSubnet() (here, there string, err error) {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return "", "", err
	}
	for range 100 {
		n := mathrand.IntN(1 << 15)
		address := func(i int) string { return fmt.Sprintf("198.%d.%d.%d", 18+n>>14, n>>6&255, n<<2&255+i) }
		if !slices.ContainsFunc(taken, func(a net.Addr) bool {
			network, ok := a.(*net.IPNet)
			return ok && network.Contains(net.ParseIP(address(1)))
		}) {
			return address(1), address(2), nil
		}
	}
	return "", "", errors.New("no network is free in 198.18.0.0/15")
}

// Mount puts a directory of this machine into the node's file system, at the same path.
func (n *Node) Mount(dir string) error { return n.mount(dir, dir) }

func (n *Node) mount(from, to string) error {
	path := filepath.Join(n.root, to)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", from, err)
	}
	n.mounts = append(n.mounts, path)
	return nil
}

// ReadOnly lets the node only read a directory that was put there, or write to it again. While a file is open for writing the kernel
// refuses that, with EBUSY.
func (n *Node) ReadOnly(dir string, readOnly bool) error {
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", filepath.Join(n.root, dir), "", flags, "")
}

// Start starts a command in the node. Its path is one of the node's.
func (n *Node) Start(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		// The thread is in the node now, so nobody else may use it: it ends with its goroutine.
		runtime.LockOSThread()
		started <- n.start(cmd)
	}()
	return <-started
}

func (n *Node) start(cmd *exec.Cmd) error {
	network, err := os.Open("/run/netns/" + n.veth)
	if err != nil {
		return err
	}
	defer network.Close()
	if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Sethostname([]byte(n.name)); err != nil {
		return fmt.Errorf("sethostname: %w", err)
	}
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWIPC
	cmd.SysProcAttr.Chroot, cmd.Dir = n.root, "/"
	return cmd.Start()
}

// Forward lets the node reach a server of this machine, at the address that it returns.
func (n *Node) Forward(target string) (address string, err error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(n.Here, "0"))
	if err != nil {
		return "", err
	}
	n.forwards = append(n.forwards, ln)
	go func() {
		for {
			from, err := ln.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", target)
			if err != nil {
				from.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(way[0], way[1]) // however it ends, so does the connection
					from.Close()
					to.Close()
				}()
			}
		}
	}()
	return ln.Addr().String(), nil
}

// Unplug takes the node off the network: what it sends is lost, and so is what is sent to it. Nobody is told. As often as it was done
// Plug undoes it.
func (n *Node) Unplug() error { return n.plug(+1) }

// Plug undoes Unplug.
func (n *Node) Plug() error { return n.plug(-1) }

func (n *Node) plug(by int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.unplugs
	n.unplugs += by
	switch {
	case before == 0:
		return ip("link set " + n.veth + " down")
	case n.unplugs == 0:
		return ip("link set " + n.veth + " up")
	}
	return nil
}

// Remove removes the node. Its programs must have ended.
func (n *Node) Remove() (err error) {
	for _, ln := range n.forwards {
		ln.Close()
	}
	for _, path := range slices.Backward(n.mounts) {
		err = errors.Join(err, unix.Unmount(path, unix.MNT_DETACH))
	}
	if n.root != "" {
		err = errors.Join(err, os.Remove(n.root))
	}
	if _, serr := os.Stat("/run/netns/" + n.veth); serr == nil {
		err = errors.Join(err, ip("netns del "+n.veth)) // the interface goes with it
	}
	return err
}
