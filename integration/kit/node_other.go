//go:build !linux

package kit

import (
	"errors"
	"os/exec"
)

// Node is a host that shares nothing with the others; there are none on this system.
type Node struct{ Here string }

var errNoNodes = errors.New("network namespaces are Linux's")

// CanHaveNodes says why there can be no nodes.
func CanHaveNodes() error { return errNoNodes }

func NewNode(string, string) (*Node, error) { return nil, errNoNodes }

func (n *Node) Mount(string) error             { return errNoNodes }
func (n *Node) ReadOnly(string, bool) error    { return errNoNodes }
func (n *Node) Start(*exec.Cmd) error          { return errNoNodes }
func (n *Node) Forward(string) (string, error) { return "", errNoNodes }
func (n *Node) Unplug() error                  { return errNoNodes }
func (n *Node) Plug() error                    { return errNoNodes }
func (n *Node) Remove() error                  { return errNoNodes }
