package slotstest_test

import (
	"testing"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

func TestMem(t *testing.T) {
	mem := slotstest.NewMem(1 << 20)
	slotstest.Run(t, func(*testing.T) slots.Store { return mem })
}

// TestMemConforms limits values to a size so small that most batches take several.
func TestMemConforms(t *testing.T) {
	b := slotstest.Backend(func(*testing.T) slots.Store { return slotstest.NewMem(1500) })
	b.Virtual = true
	storagetest.Run(t, b)
}
