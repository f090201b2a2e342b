module trainyard.invalid/external-secrets

go 1.26

// For its CRDs alone: no program of it is built.
require github.com/external-secrets/external-secrets v1.3.2
