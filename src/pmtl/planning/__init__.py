"""What a run can be expected to give, from public numbers alone, before any budget is spent."""
