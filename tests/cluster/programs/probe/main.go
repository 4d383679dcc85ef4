// Package main runs in the harness's own pods. Without arguments it holds a pod's namespaces open until it
// gets a stop signal. With arguments it does what a test of the cluster asks of a pod:
//
//	probe exit CODE           says so and ends with the code
//	probe serve ADDRESS       answers every connection with its host's name, until it gets a stop signal
//	probe connect ADDRESS     tries until a connection is answered, and prints the answer
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	arguments := append(os.Args[1:], "", "")
	switch arguments[0] {
	case "exit":
		code, err := strconv.Atoi(arguments[1])
		check(err)
		fmt.Println("ending with", code)
		os.Exit(code)
	case "serve":
		listener, err := net.Listen("tcp", arguments[1])
		check(err)
		go serve(listener)
	case "connect":
		connect(arguments[1])
		return
	}
	waitForTheEnd()
}

func serve(listener net.Listener) {
	name, err := os.Hostname()
	check(err)
	for {
		connection, err := listener.Accept()
		check(err)
		fmt.Fprint(connection, name)
		connection.Close()
	}
}

func connect(address string) {
	for started := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			answer, err := io.ReadAll(connection)
			check(err)
			fmt.Println(string(answer))
			return
		}
		if time.Since(started) > 2*time.Minute {
			check(err)
		}
	}
}

// As the first process of a pod it also reaps what is orphaned to it.
func waitForTheEnd() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
				break
			}
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
