// Holds a pod's namespaces open, reaps orphans where the pod shares one PID namespace, leaves when told to.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	told := make(chan os.Signal, 8)
	signal.Notify(told, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	for one := range told {
		if one != syscall.SIGCHLD {
			return
		}
		for pid, err := 1, error(nil); pid > 0 && err == nil; {
			pid, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
