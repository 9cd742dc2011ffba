//go:build tools

// Package sim names the program that plays the nodes of a simulated cluster, so that go.mod pins it.
package sim

import _ "sigs.k8s.io/kwok/cmd/kwok"
