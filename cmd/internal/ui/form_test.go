package ui

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A form is valid for the user to whom it was shown, for a limited time, in the program that made it.
func TestForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForms()
		o := order{Action: "purge", Query: "type=orders", Count: 5, User: "anna"}
		form := f.sign(o)
		read := func(f *forms, form, action, user string, want error) {
			t.Helper()
			got, err := f.read(form, action, user)
			if !errors.Is(err, want) || want == nil && (got.Query != o.Query || got.Count != o.Count) {
				t.Errorf("%+v, %v; want %v", got, err, want)
			}
		}
		read(f, form, "purge", "anna", nil)
		read(f, form, "requeue", "anna", errForm)
		read(f, form, "purge", "bob", errForm)
		read(newForms(), form, "purge", "anna", errForm)
		for i := range form {
			if b := []byte(form); b[i] != 'A' {
				b[i] = 'A'
				if _, err := f.read(string(b), "purge", "anna"); err == nil && string(b[:i]) != form[:len(form)-1] { // the last digit has unused bits
					t.Fatalf("byte %d can be changed", i)
				}
			}
		}
		if form == f.sign(o) {
			t.Error("two forms are the same")
		}
		time.Sleep(formLife)
		read(f, form, "purge", "anna", nil)
		time.Sleep(2 * time.Second)
		read(f, form, "purge", "anna", errOld)
	})
}

// The numbers of concurrent actions and of kept outcomes are bounded; outcomes of expired forms are forgotten.
func TestOutcomesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForms()
		begin := func(i int) (*outcome, error) {
			out, _, err := f.begin(order{Nonce: fmt.Sprint(i), User: "anna"}, "")
			return out, err
		}
		var all []*outcome
		for i := range mostActions {
			out, err := begin(i)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, out)
		}
		if _, err := begin(mostActions); !errors.Is(err, errBusy) {
			t.Errorf("one too many: %v", err)
		}
		for _, out := range all {
			f.end(out)
		}
		for i := range mostKept - mostActions {
			out, err := begin(1000 + i)
			if err != nil {
				t.Fatal(err)
			}
			f.end(out)
		}
		if _, err := begin(9999); !errors.Is(err, errBusy) || len(f.kept) != mostKept {
			t.Errorf("%d outcomes are kept, %v", len(f.kept), err)
		}
		time.Sleep(formLife + time.Second)
		if _, err := begin(9999); err != nil || len(f.kept) != 1 {
			t.Errorf("%d outcomes are kept, %v", len(f.kept), err)
		}
		if f.find("9999", "bob") != nil || f.find("9999", "anna") == nil {
			t.Error("an outcome is its user's")
		}
	})
}
