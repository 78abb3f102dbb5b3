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

// Node is a simulated host on this machine that shares nothing with other nodes:
//
//   - a network namespace with one interface, which leads only to an address of this machine;
//   - its own file system in memory, which contains only the programs given to it and the mounts of [Node.Mount];
//   - its own host name, process numbers and shared memory. There is no /proc.
//
// It remains when its programs end, like a host that is switched off and on. It requires root and ip(8).
type Node struct {
	name, veth string
	root       string // directory
	mounts     []string
	forwards   []net.Listener

	// Here is this machine's address as the node sees it; no other address is reachable.
	Here string

	mu      sync.Mutex
	unplugs int // calls of Unplug that Plug has not undone
}

// CanHaveNodes returns nil if nodes can be created, or else an error that says why not.
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

// NewNode creates a node with the programs of a directory at /bin; "" means none.
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

// freeSubnet returns two addresses of an unused network of four addresses in 198.18.0.0/15, which RFC 2544 reserves for device
// tests.
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

// Mount mounts a directory of this machine in the node's file system, at the same path.
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

// ReadOnly makes a mounted directory read-only for the node, or writable again. While a file in it is open for writing, the kernel refuses
// to make it read-only, with EBUSY.
func (n *Node) ReadOnly(dir string, readOnly bool) error {
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", filepath.Join(n.root, dir), "", flags, "")
}

// Start starts a command in the node. Its path is a path of the node's file system.
func (n *Node) Start(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		// The thread is in the node now, so no other goroutine may use it: it ends with this goroutine.
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

// Forward makes a server of this machine reachable from the node, at the returned address.
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
					_, _ = io.Copy(way[0], way[1]) // the connection ends in any case
					from.Close()
					to.Close()
				}()
			}
		}
	}()
	return ln.Addr().String(), nil
}

// Unplug disconnects the node from the network: packets from and to it are lost without notice. Every call needs a call of Plug to undo
// it.
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
		err = errors.Join(err, ip("netns del "+n.veth)) // removes the interface, too
	}
	return err
}
