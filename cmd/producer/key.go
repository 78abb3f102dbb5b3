package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
)

// keyFunc makes the idempotency key of a message.
type keyFunc func(payload []byte) (string, error)

// keyFrom parses --key-from; nil: no keys.
func keyFrom(spec string) (keyFunc, error) {
	field, isJSON := strings.CutPrefix(spec, "json:")
	switch {
	case spec == "":
		return nil, nil
	case spec == "payload":
		return func(payload []byte) (string, error) {
			sum := sha256.Sum256(payload)
			return hex.EncodeToString(sum[:]), nil
		}, nil
	case isJSON && field != "":
		path := strings.Split(field, ".")
		return func(payload []byte) (string, error) { return jsonKey(payload, path) }, nil
	}
	return nil, cli.Usagef("--key-from %q: use payload, or json:FIELD as in json:id or json:order.id", spec)
}

// jsonKey returns the text or number at path in a JSON object.
func jsonKey(payload []byte, path []string) (string, error) {
	name := strings.Join(path, ".")
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber() // keeps all digits of 12345678901234567890
	var v any
	if err := d.Decode(&v); err != nil {
		return "", fmt.Errorf("the message is not JSON: %w", err)
	}
	for _, field := range path {
		object, ok := v.(map[string]any)
		if !ok {
			return "", fmt.Errorf("the message has no field %s", name)
		}
		if v, ok = object[field]; !ok {
			return "", fmt.Errorf("the message has no field %s", name)
		}
	}
	var key string
	switch v := v.(type) {
	case string:
		key = v
	case json.Number:
		key = v.String()
	default:
		return "", fmt.Errorf("the field %s is neither a string nor a number", name)
	}
	if key == "" {
		return "", errors.New("the field " + name + " is empty")
	}
	return key, nil
}

func withKey(headers map[string]string, key string) map[string]string {
	headers = maps.Clone(headers)
	if headers == nil {
		headers = make(map[string]string, 1)
	}
	headers[queue.KeyHeader] = key
	return headers
}
