//go:build unix

package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// A MongoDB URI is parsed by hand: it may name several hosts, which net/url does not support.

// splitURI returns the parts before the hosts, the hosts, and the part after them: "mongodb://user@",
// "a:1,b:2", "/db?options".
func splitURI(uri string) (before, hosts, behind string, err error) {
	rest, ok := strings.CutPrefix(uri, "mongodb://")
	if !ok {
		return "", "", "", fmt.Errorf("runs go through links, which have to know the hosts: use mongodb://host:port/…, not %q", uri)
	}
	before = "mongodb://"
	authority := rest
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, behind = rest[:i], rest[i:]
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		before, authority = before+authority[:at+1], authority[at+1:]
	}
	return before, authority, behind, nil
}

// inDatabase returns the URI with a database in its path, and a direct connection.
func inDatabase(uri, name string) (string, error) {
	before, hosts, behind, err := splitURI(uri)
	if err != nil {
		return "", err
	}
	path, query, _ := strings.Cut(behind, "?")
	add := func(option string) {
		if key, _, _ := strings.Cut(option, "="); !strings.Contains(query, key+"=") {
			query = strings.TrimPrefix(query+"&"+option, "&")
		}
	}
	if database := strings.TrimPrefix(path, "/"); before != "mongodb://" {
		if database == "" {
			database = "admin"
		}
		add("authSource=" + database) // as the path said before
	}
	add("directConnection=true")
	return before + hosts + "/" + name + "?" + query, nil
}

// replicaSet returns the URI of the replica set that the server belongs to, if there can be an election in it.
func replicaSet(ctx context.Context, uri, database string) (string, error) {
	one, err := inDatabase(uri, database)
	if err != nil {
		return "", err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(one).SetServerSelectionTimeout(startWithin))
	if err != nil {
		return "", err
	}
	defer bounded(ctx, client.Disconnect)
	var hello struct {
		SetName string   `bson:"setName"`
		Hosts   []string `bson:"hosts"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return "", err
	}
	if hello.SetName == "" || len(hello.Hosts) < 2 {
		return "", fmt.Errorf("%w: the server is no replica set of several members; name one in %s", errNotHere, mongotest.EnvURI)
	}
	before, _, behind, err := splitURI(one)
	if err != nil {
		return "", err
	}
	behind = strings.Replace(behind, "directConnection=true", "replicaSet="+url.QueryEscape(hello.SetName), 1)
	return before + strings.Join(hello.Hosts, ",") + behind, nil
}

// through returns the URI with another host.
func through(uri, host string) string {
	before, _, behind, err := splitURI(uri)
	if err != nil {
		return uri // inDatabase has already parsed it
	}
	return before + host + behind
}

// databaseOf returns the database in a URI's path.
func databaseOf(uri string) string {
	_, _, behind, _ := splitURI(uri)
	path, _, _ := strings.Cut(behind, "?")
	return strings.TrimPrefix(path, "/")
}
