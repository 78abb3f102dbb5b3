package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fencepost/fencepost/cmd/internal/httpbody"
	"github.com/fencepost/fencepost/internal/printable"
)

const (
	shownBytes  = 64 << 10  // bytes of a payload shown on a page; it can be downloaded completely
	jsonBytes   = 256 << 10 // larger JSON is not formatted
	jsonDepth   = 100       // deeper JSON would be mostly indentation
	previewSize = 200       // bytes shown in a list
	pieceBytes  = 256 << 10 // bytes of a download that a viewer must receive within sendTimeout
)

// payloadView is the display of a payload.
type payloadView struct {
	Size     string
	Hidden   bool
	Text     string
	As       string
	Forms    []option
	Note     string
	Download string
}

// payload shows a payload in the form that the address of the page asks for, or else in the form that suits it.
func (u *UI) payload(r *http.Request, p []byte, download string) (*payloadView, error) {
	v := &payloadView{Size: size(int64(len(p))) + exact(len(p)), Hidden: u.o.HidePayloads, Download: download, As: r.URL.Query().Get("as")}
	if v.Hidden {
		return v, nil
	}
	laidOut, whyNot := layOut(p)
	switch {
	case v.As != "":
	case whyNot == "" && len(p) > 0 && (p[0] == '{' || p[0] == '['):
		v.As = "json"
	case utf8.Valid(p):
		v.As = "text"
	default:
		v.As = "hex"
	}
	switch v.As {
	case "json":
		if v.Text = printableText(cut(laidOut)); whyNot != "" {
			v.Note = whyNot
		} else if len(laidOut) > shownBytes {
			v.Note = "This is the beginning; download the payload for all of it."
		}
	case "text":
		v.Text = printableText(cut(p))
		if !utf8.Valid(p) {
			v.Note = "It is not UTF-8 text: invalid bytes are shown as \\x and two digits. "
		}
	case "hex":
		v.Text = hex.Dump(p[:min(len(p), shownBytes/4)])
		if len(p) > shownBytes/4 {
			v.Note = fmt.Sprintf("These are the first %s; download the payload for all of it.", size(shownBytes/4))
		}
	default:
		return nil, badRequest("A payload can be shown as text, json or hex.")
	}
	if v.As == "text" && len(p) > shownBytes {
		v.Note += fmt.Sprintf("These are the first %s; download the payload for all of it.", size(shownBytes))
	}
	for _, as := range []string{"text", "json", "hex"} {
		v.Forms = append(v.Forms, option{Name: map[string]string{"text": "Text", "json": "JSON", "hex": "Hex"}[as], Link: "?as=" + as, Chosen: as == v.As})
	}
	return v, nil
}

// exact returns the exact number of bytes for a rounded size.
func exact(n int) string {
	if n < 1024 {
		return ""
	}
	return " (" + count(n) + " bytes)"
}

// cut returns the beginning of a text.
func cut(p []byte) []byte {
	if len(p) <= shownBytes {
		return p
	}
	n := shownBytes
	for n > shownBytes-utf8.UTFMax && !utf8.RuneStart(p[n]) {
		n--
	}
	return p[:n]
}

// layOut indents JSON, or returns why it does not.
func layOut(p []byte) (laidOut []byte, whyNot string) {
	if len(p) > jsonBytes {
		return nil, fmt.Sprintf("It is larger than %s, so it is not formatted as JSON.", size(jsonBytes))
	}
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	if deepest > jsonDepth {
		return nil, "It is nested too deeply to be formatted as JSON."
	}
	var b bytes.Buffer
	if err := json.Indent(&b, p, "", "  "); err != nil {
		return nil, "It is not JSON: " + err.Error() + "."
	}
	return b.Bytes(), ""
}

// preview returns the beginning of a payload, on one line.
func preview(p []byte) string {
	text := string(p[:min(len(p), previewSize)])
	if len(p) > previewSize {
		for n := 0; n < utf8.UTFMax && !utf8.ValidString(text); n++ { // a character that was cut
			text = text[:len(text)-1]
		}
		if !utf8.ValidString(text) {
			text = string(p[:previewSize])
		}
		text += " …"
	}
	return printable.Text(strings.Join(strings.Fields(text), " "))
}

// printableText makes a text printable and keeps its lines. The page is made printable later, too, but the template would first replace some
// unprintable characters instead of showing them escaped.
func printableText(p []byte) string { return string(printable.Lines(string(p), "")) }

// download sends a payload unchanged, for a browser to save and never to show.
func (u *UI) download(w http.ResponseWriter, r *http.Request, name string, get func(*http.Request) ([]byte, error)) {
	if u.o.HidePayloads { // rule: with --hide-payloads, no address returns a payload
		http.Error(w, "payloads are hidden: this program was started with --hide-payloads", http.StatusForbidden)
		return
	}
	httpbody.Take(w, r)
	ctx, cancel := u.inTime(r)
	defer cancel()
	leave, err := place(ctx, u.sending)
	if err != nil {
		mayTake(w)
		http.Error(w, "other downloads are in progress; try again when they have ended", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	p, err := u.fetch(r.WithContext(ctx), get)
	mayTake(w)
	if err != nil {
		status := http.StatusServiceUnavailable
		if e := (*pageError)(nil); errors.As(err, &e) {
			status = e.status
		}
		http.Error(w, u.clean(err), status)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(p)))
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	for piece := range slices.Chunk(p, pieceBytes) {
		mayTake(w)
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

// fetch gets a payload. It counts as a page that reads payloads.
func (u *UI) fetch(r *http.Request, get func(*http.Request) ([]byte, error)) (p []byte, err error) {
	done, err := u.reading(r.Context())
	if err != nil {
		return nil, err
	}
	defer done()
	if p, err = get(r); err != nil {
		err = cmp.Or(context.Cause(r.Context()), err)
	}
	return p, err
}

// header is a header of a message.
type header struct{ Key, Value string }
