"""The default methods: pooling for linear models, anchored for networks."""
