module trainyard.invalid/prometheus-operator

go 1.26

// For its CRDs alone: no program of it is built.
require github.com/prometheus-operator/prometheus-operator v0.85.0
