// Package main is Argo CD as far as it syncs, in one binary that acts as the program it is called by: its application
// controller, its repository server, and in place of the Redis between them one that lives in memory.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/alicebob/miniredis/v2"
	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	repository "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "argocd-application-controller":
		err = controller.NewCommand().Execute()
	case "argocd-repo-server":
		err = repository.NewCommand().Execute()
	case "argocd-redis":
		err = redis()
	default:
		err = fmt.Errorf("called as %q, expected the name of a program of Argo CD", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// redis serves at the address that `--address` gives until it is asked to stop. What it holds never expires.
func redis() error {
	address := flag.String("address", "127.0.0.1:6379", "where to listen")
	flag.Parse()
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(*address); err != nil {
		return fmt.Errorf("listen at %s: %w", *address, err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	server.Close()
	return nil
}
