module trainyard.invalid/kueue

go 1.26

// For its CRDs alone: no program of it is built.
require sigs.k8s.io/kueue v0.18.4
