package main

import (
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/clitest"
)

func TestWrongFlagValues(t *testing.T) {
	clitest.WrongValues(t, root, map[string]string{"producer publish": "--type t --message x"})
}
