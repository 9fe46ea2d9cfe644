"""Callbacks that report a run to TensorBoard or MLflow.

They write outside the run's folder: both note the time and the machine, which do not belong in
the public part of a production run. In production they get only what is public, like any callback.
"""
