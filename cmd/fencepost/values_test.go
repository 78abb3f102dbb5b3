package main

import (
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/clitest"
)

func TestWrongFlagValues(t *testing.T) {
	clitest.WrongValues(t, root, map[string]string{
		"fencepost cat": "t.fpl", "fencepost tail": "t.fpl", "fencepost verify": "t.fpl", "fencepost compact": "t.fpl", "fencepost repair": "t.fpl",
		"fencepost types show": "t", "fencepost types pause": "t", "fencepost types resume": "t", "fencepost types limit": "t", "fencepost types purge": "t", "fencepost types peek": "t",
		"fencepost locks show": "t", "fencepost locks release": "t", "fencepost dead show": "065svpgc20000000000001o00000001a", "fencepost dead rm": "065svpgc20000000000001o00000001a", "fencepost dead requeue": "--type t",
		"fencepost scheduled rm": "--type t", "fencepost conform publisher": "true", "fencepost worker": "--type t", "fencepost worker config": "--type t",
	})
}
