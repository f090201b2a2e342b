// The registry of the tests: CNCF distribution with storage in a folder and passwords in a file.
//
//	registry CONFIG.yaml        serves until it is stopped
//	registry --password         reads NAME:PASSWORD from standard input and prints the line of a password file
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"golang.org/x/crypto/bcrypt"
)

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: registry CONFIG.yaml | registry --password"))
	}
	if os.Args[1] == "--password" {
		fail(printPassword())
		return
	}
	fail(serve(os.Args[1]))
}

// serve answers requests as the file says, until it is stopped.
func serve(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	config, err := configuration.Parse(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	server, err := registry.NewRegistry(context.Background(), config)
	if err != nil {
		return err
	}
	return server.ListenAndServe()
}

// printPassword prints a line of a password file; the registry accepts only bcrypt.
func printPassword() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	name, password, found := strings.Cut(strings.TrimSuffix(string(text), "\n"), ":")
	if !found {
		return fmt.Errorf("expected NAME:PASSWORD on standard input")
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		return err
	}
	fmt.Printf("%s:%s\n", name, hash)
	return nil
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}
