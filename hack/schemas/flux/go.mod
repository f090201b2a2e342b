module trainyard.invalid/flux

go 1.26

// For their CRDs alone: no program of them is built.
require (
	github.com/fluxcd/helm-controller v1.6.0
	github.com/fluxcd/source-controller v1.9.2
)
