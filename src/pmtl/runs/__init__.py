"""The folder of a run: written so that it can be continued, evaluated and trusted."""
