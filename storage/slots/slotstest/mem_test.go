package slotstest_test

import (
	"testing"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

func TestMem(t *testing.T) {
	mem := slotstest.NewMem(1 << 20)
	slotstest.Run(t, func(*testing.T) slots.Store { return mem })
}
