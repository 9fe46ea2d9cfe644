"""Training, and the folder of a run, from which it can be resumed, evaluated and checked."""
