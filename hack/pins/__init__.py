"""Whether all that comes from elsewhere is pinned (docs/supply-chain.md): `python -m hack.pins`."""
