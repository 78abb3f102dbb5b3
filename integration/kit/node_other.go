//go:build !linux

package kit

import (
	"errors"
	"os/exec"
)

// Node is a simulated host that shares nothing with other nodes. It is not supported on this system.
type Node struct{ Here string }

var errNoNodes = errors.New("network namespaces are Linux's")

// CanHaveNodes returns an error that says why nodes cannot be created.
func CanHaveNodes() error { return errNoNodes }

func NewNode(string, string) (*Node, error) { return nil, errNoNodes }

func (n *Node) Mount(string) error             { return errNoNodes }
func (n *Node) ReadOnly(string, bool) error    { return errNoNodes }
func (n *Node) Start(*exec.Cmd) error          { return errNoNodes }
func (n *Node) Forward(string) (string, error) { return "", errNoNodes }
func (n *Node) Unplug() error                  { return errNoNodes }
func (n *Node) Plug() error                    { return errNoNodes }
func (n *Node) Remove() error                  { return errNoNodes }
